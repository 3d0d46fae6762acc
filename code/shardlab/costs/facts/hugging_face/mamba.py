"""Architectures some of whose layers are Mamba-2: Granite 4, Nemotron-H and Nemotron 3."""

from collections.abc import Callable
from typing import Any

from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from .dense import grouped
from .fields import Fields, short
from .hybrids import STATES, note_states
from .mixtures import BIASED, experts, shared_number

OLDER = {"mamba": STATES, "attention": "full_attention"}  # Granite's names of layers
# Names in `layers_block_type`, of transformers 5 and before -> letters in the pattern.
LETTERS = {
    **{"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*"},
    **{"mlp": "-", "moe": "E"},
}
# Fields of Nemotron-H on which no size depends.
NEMOTRON_UNUSED = (
    *("expand", "mamba_hidden_act", "mamba_ssm_cache_dtype", "use_mamba_kernels"),
    *("num_logits_to_keep", "rescale_prenorm_residual", "residual_in_fp32", "norm_eps"),
    *("time_step_limit", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank"),
    *("moe_shared_expert_overlap", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
)
# Those of experts, where no layer has them.
NEMOTRON_EXPERTS = (
    *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "moe_latent_size"),
)


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
    mixture = experts(
        fields,
        "num_local_experts",
        "intermediate_size",
        num_shared=shared_number(fields, "shared_intermediate_size", "intermediate_size"),
    )
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
    recurrent = Recurrent(rule="Mamba-2", layers=layers, num_heads=heads, value_size=size, **sizes)
    note_states(fields, recurrent)
    return recurrent


def _nemotron(fields: Fields) -> TransformerSpec:
    """Nemotron-H and 3: each layer is Mamba-2, attention, or a block or mixture without a gate."""
    fields.same("head_dim", "attention_head_dim")
    fields.only("mlp_hidden_act", "relu2")
    fields.only("use_conv_bias", True)
    fields.only("mamba_proj_bias", False)
    fields.ignore("architectures", *NEMOTRON_UNUSED)
    pattern = _pattern(fields)
    # a file may leave the number out, for the pattern has it; `grouped` reads it
    fields.config = {**fields.config, "num_hidden_layers": len(pattern)}
    places = {kind: tuple(n for n, each in enumerate(pattern) if each == kind) for kind in "M-E"}
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
    note_states(fields, recurrent)
    fields.notes.append("no positions: rotations are timed in layers with attention")
    return grouped(
        fields,
        **_mixture(fields) if places["E"] else _block(fields),
        recurrent=recurrent,
        gated=False,
        blocks_at=places["-"] or places["E"],
    )


def _pattern(fields: Fields) -> str:
    """Take the kind of each layer, as a letter. Errors: ValueError for kinds not counted."""
    named = fields.take("layers_block_type", list, None)
    if named is None:
        pattern = fields.take("hybrid_override_pattern", str)
    else:
        pattern = "".join(LETTERS.get(str(each), "?") for each in named)
        fields.only("hybrid_override_pattern", pattern)
    count = fields.count("num_hidden_layers", len(pattern))
    if len(pattern) != count or "M" not in pattern or {*pattern} - {*"M*"} not in ({"-"}, {"E"}):
        raise ValueError(
            f"hybrid_override_pattern={short(pattern)} must have M, * and either - or E, a letter "
            f"for each of num_hidden_layers={count}, and some M; layers_block_type may name the "
            "kinds"
        )
    return str(pattern)


def _block(fields: Fields) -> dict[str, Any]:
    fields.ignore(*NEMOTRON_EXPERTS)
    return {"ffn_size": fields.count("intermediate_size")}


def _mixture(fields: Fields) -> dict[str, Any]:
    """Take the experts, and a shared one of another width, of Nemotron 3 Nano."""
    fields.only("n_shared_experts", 1)
    fields.only("moe_latent_size", None)  # Super's and Ultra's experts read a narrow layer
    fields.ignore("intermediate_size")  # of layers without experts: there are none
    width = "moe_intermediate_size"
    shared = shared_number(fields, "moe_shared_expert_intermediate_size", width)
    return {"experts": experts(fields, "n_routed_experts", width, num_shared=shared, **BIASED)}


MAMBA: dict[str, Callable[[Fields], TransformerSpec]] = {
    "GraniteMoeHybridForCausalLM": _granite,
    "NemotronHForCausalLM": _nemotron,
}
