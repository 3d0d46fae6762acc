"""Architectures whose layers have experts: from fields to a TransformerSpec."""

from collections.abc import Callable
from typing import Any

from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

from .dense import grouped
from .fields import Fields
from .known import EXPERTS

BIASED = {"choose": "sigmoid", "balance": "bias"}  # a router with one more number for each expert


def experts(fields: Fields, number: str, size: str, **rules: Any) -> Experts:
    """Take the routed experts: how many there are, and how wide."""
    fields.same(number, *(name for name in EXPERTS if name != number))
    fields.same("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk")
    return Experts(
        num_experts=fields.count(number),
        per_token=fields.count("num_experts_per_tok"),
        expert_size=fields.count(size),
        **rules,
    )


def shared_number(fields: Fields, shared: str, routed: str) -> int:
    """Take the width of the shared experts together, as a number of experts like the routed ones.

    Errors: ValueError for a width that is no multiple.
    """
    width, each = fields.count(shared), fields.count(routed)
    if width % each:
        raise ValueError(f"{shared}={width} must be a multiple of {routed}={each}")
    return int(width // each)


def _mixtral(fields: Fields) -> TransformerSpec:
    """Mixtral, and Granite's mixture, whose head may be tied."""
    return grouped(fields, experts=experts(fields, "num_local_experts", "intermediate_size"))


def _qwen3(fields: Fields) -> TransformerSpec:
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [], None)
    fields.ignore("intermediate_size")  # of layers without experts: there are none
    mixture = experts(fields, "num_experts", "moe_intermediate_size")
    return grouped(fields, experts=mixture, head_norms=True)


def _glm4(fields: Fields) -> TransformerSpec:
    """GLM-4.5 and 4.6: biases on queries, keys and values, and DeepSeek-V3's experts."""
    dense = fields.count("first_k_dense_replace", 0, least=0)
    return grouped(
        fields,
        **first_dense(fields, dense),
        experts=experts(
            fields,
            "n_routed_experts",
            "moe_intermediate_size",
            num_shared=fields.count("n_shared_experts", 0, least=0),
            **BIASED,
        ),
        head_norms=fields.flag("use_qk_norm", False),
        bias_places=("qkv",) if fields.flag("attention_bias", False) else None,
    )


def first_dense(fields: Fields, count: int) -> dict[str, Any]:
    """Take the width of the first layers, those without experts, and what confirms their count."""
    width = fields.count("intermediate_size")
    sparse = max(0, fields.count("num_hidden_layers") - count)
    fields.only("mlp_layer_types", ["dense"] * count + ["sparse"] * sparse, None)
    return {"num_dense": count, "ffn_size": width if count else None}


def _llama4(fields: Fields) -> TransformerSpec:
    """Llama 4: one expert for each token beside a shared one; some have them in every second layer.

    Its norms of queries and keys have no parameters.
    """
    fields.ignore("use_qk_norm", "moe_layers")
    layers = fields.count("num_hidden_layers")
    every = fields.count("interleave_moe_layer_step")
    dense = layers - layers // every
    if dense:
        fields.notes.append(
            f"interleave_moe_layer_step={every}: {dense} layers without experts are placed first"
        )
    width = fields.count("intermediate_size_mlp")
    mixture = experts(
        fields, "num_local_experts", "intermediate_size", num_shared=1, choose="sigmoid"
    )
    return grouped(fields, experts=mixture, num_dense=dense, ffn_size=width if dense else None)


def _gpt_oss(fields: Fields) -> TransformerSpec:
    """Count gpt-oss: a sink for each head, and biases everywhere, in experts and routers too."""
    attention = ("qkv", "out") if fields.flag("attention_bias", True) else ()
    mixture = experts(fields, "num_local_experts", "intermediate_size")
    return grouped(fields, experts=mixture, sinks=True, bias_places=(*attention, "ffn"))


def _minimax_m2(fields: Fields) -> TransformerSpec:
    """MiniMax-M2: norms over all heads together, and routers balanced by a bias."""
    fields.only("use_qk_norm", True)
    fields.only("qk_norm_type", "per_layer")
    fields.only("use_routing_bias", True)
    fields.only("shared_intermediate_size", 0)
    fields.only("scoring_func", "sigmoid")
    fields.only("attn_type_list", [1] * fields.count("num_hidden_layers"))
    if fields.take("use_mtp", bool, False):
        fields.notes.append("use_mtp: the modules that predict further tokens are not counted")
    fields.ignore("mlp_intermediate_size", "num_mtp_modules", "mtp_transformer_layers")
    fields.ignore("layernorm_full_attention_beta", "layernorm_linear_attention_beta")
    fields.ignore("layernorm_mlp_beta")
    mixture = experts(fields, "num_local_experts", "intermediate_size", **BIASED)
    return grouped(fields, experts=mixture, whole_norms=True)


MIXTURES: dict[str, Callable[[Fields], TransformerSpec]] = {
    "MixtralForCausalLM": _mixtral,
    "GraniteMoeForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3,
    "Glm4MoeForCausalLM": _glm4,
    "Llama4ForCausalLM": _llama4,
    "GptOssForCausalLM": _gpt_oss,
    "MiniMaxM2ForCausalLM": _minimax_m2,
}
