"""Architectures some of whose layers keep states instead of keys and values."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardlab.model.experts import Experts
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from .dense import grouped
from .fields import Fields
from .latent import deepseek
from .mixtures import BIASED, experts

STATES = "linear_attention"  # the kind of layer, in `layer_types`
OLDER = {"mamba": STATES, "attention": "full_attention"}  # Granite's names for kinds of layers
# Fields of Nemotron-H on which no size depends while its layers have no experts.
NEMOTRON_UNUSED = (
    *("expand", "mamba_hidden_act", "mamba_ssm_cache_dtype", "use_mamba_kernels"),
    *("num_logits_to_keep", "rescale_prenorm_residual", "residual_in_fp32", "norm_eps"),
    *("time_step_limit", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank"),
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "moe_latent_size", "moe_shared_expert_overlap"),
)
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
    _note(fields, recurrent)
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


def _note(fields: Fields, recurrent: Recurrent) -> None:
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
    shared = fields.count("shared_expert_intermediate_size")
    width = fields.count("moe_intermediate_size")
    if shared % width:
        raise ValueError(
            f"shared_expert_intermediate_size={shared} must be a multiple of "
            f"moe_intermediate_size={width}"
        )
    return experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        num_shared=shared // width,
        shared_gate=True,
    )


def _kimi(fields: Fields) -> TransformerSpec:
    """Kimi Linear: latent attention without positions in some layers, else Kimi Delta Attention."""
    fields.rename(KIMI_NAMES)
    fields.only("mla_use_nope", True)
    fields.only("moe_router_activation_func", "sigmoid")
    fields.ignore("architectures", "use_grouped_topk", "moe_renormalize", "num_expert_group")
    recurrent = _kimi_delta(fields)
    _note(fields, recurrent)
    fields.notes.append("mla_use_nope: rotations are timed in layers with attention, too")
    return deepseek(fields, BIASED, recurrent=recurrent)


def _kimi_delta(fields: Fields) -> Recurrent:
    """Take the object that says which layers keep states, counted from 1, and their sizes."""
    own = Fields(fields.take("linear_attn_config", dict))
    places = {name: own.take(name, list) for name in ("kda_layers", "full_attn_layers")}
    count = fields.count("num_hidden_layers")
    named = [place for each in places.values() for place in each]
    if sorted(map(str, named)) != sorted(str(place) for place in range(1, count + 1)):
        raise ValueError(
            f"kda_layers and full_attn_layers must name each of num_hidden_layers={count} once, "
            "from 1"
        )
    recurrent = Recurrent(
        rule="Kimi Delta Attention",
        layers=tuple(sorted(int(place) - 1 for place in places["kda_layers"])),
        num_heads=own.count("num_heads"),
        key_heads=own.count("num_heads"),
        key_size=own.count("head_dim"),
        value_size=own.count("head_dim"),
        convolution=own.count("short_conv_kernel_size"),
    )
    own.refuse_others("linear_attn_config", ignore_unknown=False)
    return recurrent


def _granite(fields: Fields) -> TransformerSpec:
    """Granite 4: Mamba-2 or attention, and a mixture whose shared experts may be all there is."""
    fields.only("mamba_conv_bias", True)
    fields.only("mamba_proj_bias", False)
    fields.only("normalization_function", "rmsnorm")
    fields.ignore("time_step_limit", "time_step_min", "time_step_max", "init_method")
    fields.only("position_embedding_type", "nope", "rope", None)
    if fields.config.get("position_embedding_type") != "rope":
        fields.notes.append("no positions: rotations are timed in layers with attention")
    shared = fields.count("shared_intermediate_size")
    if not fields.count("num_local_experts", 0, least=0):
        fields.ignore("intermediate_size", "num_experts_per_tok")
        return grouped(fields, recurrent=_mamba(fields), ffn_size=shared)
    mixture = experts(fields, "num_local_experts", "intermediate_size", num_shared=0)
    if shared % mixture.expert_size:
        raise ValueError(
            f"shared_intermediate_size={shared} must be a multiple of "
            f"intermediate_size={mixture.expert_size}"
        )
    mixture = replace(mixture, num_shared=shared // mixture.expert_size)
    return grouped(fields, recurrent=_mamba(fields), experts=mixture)


def _mamba(fields: Fields) -> Recurrent | None:
    """Take Mamba-2's sizes by Granite's names; None where all layers have attention."""
    count, heads = fields.count("num_hidden_layers"), fields.count("mamba_n_heads")
    listed = fields.take("layer_types", list, [STATES] * count)
    types = [OLDER.get(str(each), str(each)) for each in listed]
    if len(types) != count or not {*types} <= {STATES, "full_attention"}:
        raise ValueError(
            f"layer_types must be mamba or attention, one for each of num_hidden_layers={count}"
        )
    fields.attentions |= {STATES, *OLDER}
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    if fields.config.get("mamba_d_head", "auto") == "auto":
        fields.ignore("mamba_d_head")
        size = inner // heads
    else:
        size = fields.count("mamba_d_head")
    if heads * size != inner:
        raise ValueError(
            f"mamba_n_heads={heads} of mamba_d_head={size} must be mamba_expand times hidden_size"
        )
    sizes = {
        "key_heads": fields.count("mamba_n_groups"),
        "key_size": fields.count("mamba_d_state"),
        "convolution": fields.count("mamba_d_conv"),
        "chunk": fields.count("mamba_chunk_size"),
    }
    if STATES not in types:
        return None
    layers = tuple(place for place, kind in enumerate(types) if kind == STATES)
    recurrent = Recurrent(
        rule="Mamba-2", layers=layers, num_heads=heads, value_size=size, **sizes
    )
    _note(fields, recurrent)
    return recurrent


def _nemotron(fields: Fields) -> TransformerSpec:
    """Nemotron-H, Nemotron Nano 2: each layer is Mamba-2, attention or a block without a gate."""
    fields.rename({"attention_head_dim": "head_dim"})
    fields.only("mlp_hidden_act", "relu2")
    fields.only("use_conv_bias", True)
    fields.only("mamba_proj_bias", False)
    fields.ignore("architectures", *NEMOTRON_UNUSED)
    pattern = fields.take("hybrid_override_pattern", str)
    count = fields.count("num_hidden_layers", len(pattern))
    if len(pattern) != count or not {*"M-"} <= {*pattern} <= {*"M*-"}:
        raise ValueError(
            f"hybrid_override_pattern={pattern!r} must have M, * or - for each of "
            f"num_hidden_layers={count}, and some M and -; experts, E, are not counted here"
        )
    # a file may leave the number out, for the pattern has it; `grouped` reads it
    fields.config = {**fields.config, "num_hidden_layers": count}
    places = {kind: tuple(n for n, each in enumerate(pattern) if each == kind) for kind in "M-"}
    recurrent = Recurrent(
        rule="Mamba-2",
        layers=places["M"],
        num_heads=fields.count("mamba_num_heads"),
        key_heads=fields.count("n_groups"),
        key_size=fields.count("ssm_state_size"),
        value_size=fields.count("mamba_head_dim"),
        convolution=fields.count("conv_kernel"),
        chunk=fields.count("chunk_size"),
    )
    _note(fields, recurrent)
    fields.notes.append("no positions: rotations are timed in layers with attention")
    return grouped(
        fields,
        ffn_size=fields.count("intermediate_size"),
        recurrent=recurrent,
        gated=False,
        blocks_at=places["-"],
    )


HYBRIDS: dict[str, Callable[[Fields], TransformerSpec]] = {
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_5,
    "Qwen3_5MoeForCausalLM": _qwen3_5_moe,
    "KimiLinearForCausalLM": _kimi,
    "GraniteMoeHybridForCausalLM": _granite,
    "NemotronHForCausalLM": _nemotron,
}
