"""What a `config.json` says beside sizes: a plan may ignore it, a model that computes may not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.model.details import Details, RotaryScaling
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import listed

from .fields import Fields, short
from .reading import read

# Architecture -> whether its attention has the window that the file names without saying so.
WINDOWED = {
    "LlamaForCausalLM": False,
    "MistralForCausalLM": True,
    "Phi3ForCausalLM": True,
    "MixtralForCausalLM": True,
    "Qwen2ForCausalLM": False,
    "Qwen3ForCausalLM": False,
    "Qwen3MoeForCausalLM": False,
    "GPT2LMHeadModel": False,
}
NUMBER = (int, float)
TANH = ("gelu_new", "gelu_pytorch_tanh")


@checked
@given.in_one_line()
def read_whole(config: Mapping[str, Any]) -> tuple[str, TransformerSpec]:
    """Return the architecture that a `config.json` names, and a spec that computes what it does.

    The reference model then has the logits of the original (`bench/published_models.py`). Errors:
    ValueError as in `read`, and for whatever the reference model does not compute.
    """
    model = read(config)
    if model.architecture not in WINDOWED:
        raise ValueError(
            f"{model.architecture} can be planned, but the reference model does not compute it; "
            f"use one of {listed(WINDOWED)}"
        )
    fields = Fields(config, model.architecture)
    gpt2 = model.architecture == "GPT2LMHeadModel"
    details = _learned(fields) if gpt2 else _rotary(fields, WINDOWED[model.architecture])
    spec, experts = model.spec, model.spec.experts
    if experts and not fields.flag("norm_topk_prob", model.architecture == "MixtralForCausalLM"):
        experts = replace(experts, choose="softmax before")
    return model.architecture, replace(spec, details=details, experts=experts)


def _learned(fields: Fields) -> Details:
    """GPT-2's details."""
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    act = fields.take("activation_function", str, TANH[0])
    if act not in (*TANH, "gelu"):
        raise ValueError(f"activation_function={short(act)} is not computed; use gelu_new or gelu")
    epsilon = fields.take("layer_norm_epsilon", NUMBER)
    return Details(epsilon=float(epsilon), exact_gelu=act == "gelu")


def _rotary(fields: Fields, windowed: bool) -> Details:
    """Llama's details, and those of the others with its layer."""
    fields.only("hidden_act", "silu")
    window = fields.take("sliding_window", int, None)
    uses = fields.flag("use_sliding_window", windowed)
    name = "rope_parameters" if fields.config.get("rope_parameters") else "rope_scaling"
    own = Fields(fields.take(name, dict, {}))
    base = own.take("rope_theta", NUMBER, None) or fields.take("rope_theta", NUMBER)
    turned = own.take("partial_rotary_factor", NUMBER, None)
    return Details(
        epsilon=float(fields.take("rms_norm_eps", NUMBER)),
        rotary_base=float(base),
        pairs="halves",
        scaling=_scaling(own),
        turned=float(turned or fields.take("partial_rotary_factor", NUMBER, 1.0)),
        window=window if uses else None,
    )


def _scaling(own: Fields) -> RotaryScaling | None:
    """Take the rule by which rotations are slowed. Errors: ValueError for one not computed."""
    kind = own.take("rope_type", str, None) or own.take("type", str, "default")
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type={short(kind)} is not computed; default and llama3 are")
    return RotaryScaling(
        factor=own.take("factor", NUMBER),
        low=own.take("low_freq_factor", NUMBER),
        high=own.take("high_freq_factor", NUMBER),
        original=own.count("original_max_position_embeddings"),
    )
