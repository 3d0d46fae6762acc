"""Architectures some of whose layers follow a delta rule: they keep states, not keys and values."""

from collections.abc import Callable
from typing import Any

from shardlab.model.experts import Experts
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from .dense import grouped
from .fields import Fields
from .latent import deepseek
from .mixtures import BIASED, experts, shared_number

STATES = "linear_attention"  # the kind of layer, in `layer_types`
# Fields of Kimi Linear -> their names in transformers.
KIMI_NAMES = {
    "model_max_length": "max_position_embeddings",
    "num_experts_per_token": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}


def _delta(fields: Fields, **block: Any) -> TransformerSpec:
    """Qwen3-Next and Qwen3.5: gated attention in every fourth layer, else Gated DeltaNet."""
    fields.only("attn_output_gate", True)
    fields.ignore("mamba_ssm_dtype", "mtp_use_dedicated_embeddings")
    if more := fields.take("mtp_num_hidden_layers", int, 0):
        fields.notes.append(f"mtp_num_hidden_layers={more}: their parameters are not counted")
    layers = _places(fields)
    recurrent = Recurrent(
        rule="Gated DeltaNet",
        layers=layers,
        num_heads=fields.count("linear_num_value_heads"),
        key_heads=fields.count("linear_num_key_heads"),
        key_size=fields.count("linear_key_head_dim"),
        value_size=fields.count("linear_value_head_dim"),
        convolution=fields.count("linear_conv_kernel_dim"),
    )
    note_states(fields, recurrent)
    return grouped(
        fields,
        head_norms=True,
        output_gate=True,
        recurrent=recurrent,
        **block,
    )


def _places(fields: Fields) -> tuple[int, ...]:
    """Take the places of the layers with states, from a list or from an interval."""
    count = fields.count("num_hidden_layers")
    every = fields.count("full_attention_interval")
    types = fields.take("layer_types", list, None)
    if types is None:
        types = ["full_attention" if (n + 1) % every == 0 else STATES for n in range(count)]
    if len(types) != count or not {STATES} <= set(map(str, types)) <= {STATES, "full_attention"}:
        raise ValueError(
            f"layer_types must be {STATES} or full_attention, one for each of "
            f"num_hidden_layers={count}, and some {STATES}"
        )
    fields.attentions |= {STATES}
    return tuple(place for place, kind in enumerate(types) if kind == STATES)


def note_states(fields: Fields, recurrent: Recurrent) -> None:
    """Note that no published step confirms how states are timed."""
    fields.notes.append(
        f"{recurrent.rule} in {len(recurrent.layers)} layers: timed as products over chunks, which "
        "no published step confirms"
    )


def _qwen3_next(fields: Fields) -> TransformerSpec:
    """Qwen3-Next, which has a mixture in every layer."""
    fields.only("decoder_sparse_step", 1)
    return _delta(fields, experts=_gated_experts(fields))


def _qwen3_5(fields: Fields) -> TransformerSpec:
    """Qwen3.5 with one feed-forward block in a layer."""
    fields.only("mlp_only_layers", [], None)
    return _delta(fields, ffn_size=fields.count("intermediate_size"))


def _qwen3_5_moe(fields: Fields) -> TransformerSpec:
    return _delta(fields, experts=_gated_experts(fields))


def _gated_experts(fields: Fields) -> Experts:
    """Take a mixture with a shared expert, which each token weights."""
    fields.only("mlp_only_layers", [], None)
    fields.ignore("intermediate_size")  # of layers without experts: there are none
    width = "moe_intermediate_size"
    shared = shared_number(fields, "shared_expert_intermediate_size", width)
    return experts(fields, "num_experts", width, num_shared=shared, shared_gate=True)


def _kimi(fields: Fields) -> TransformerSpec:
    """Kimi Linear: latent attention without positions in some layers, else Kimi Delta Attention."""
    for own, name in KIMI_NAMES.items():
        fields.same(name, own)
    fields.only("mla_use_nope", True)
    fields.only("moe_router_activation_func", "sigmoid")
    fields.ignore("architectures", "use_grouped_topk", "moe_renormalize", "num_expert_group")
    recurrent = _kimi_delta(fields)
    note_states(fields, recurrent)
    fields.notes.append("mla_use_nope: rotations are timed in layers with attention, too")
    return deepseek(fields, BIASED, recurrent=recurrent)


def _kimi_delta(fields: Fields) -> Recurrent:
    """Take the object that says which layers keep states, counted from 1, and their sizes."""
    own = fields.inside("linear_attn_config")
    places = {name: own.take(name, list) for name in ("kda_layers", "full_attn_layers")}
    count = fields.count("num_hidden_layers")
    named = [place for each in places.values() for place in each]
    if sorted(map(str, named)) != sorted(str(place) for place in range(1, count + 1)):
        raise ValueError(
            f"kda_layers and full_attn_layers must name each of num_hidden_layers={count} once, "
            "from 1"
        )
    return Recurrent(
        rule="Kimi Delta Attention",
        layers=tuple(sorted(int(place) - 1 for place in places["kda_layers"])),
        num_heads=own.count("num_heads"),
        key_heads=own.count("num_heads"),
        key_size=own.count("head_dim"),
        value_size=own.count("head_dim"),
        convolution=own.count("short_conv_kernel_size"),
    )


DELTA: dict[str, Callable[[Fields], TransformerSpec]] = {
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_5,
    "Qwen3_5MoeForCausalLM": _qwen3_5_moe,
    "KimiLinearForCausalLM": _kimi,
}
