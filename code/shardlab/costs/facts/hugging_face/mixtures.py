"""Architectures whose layers have experts: from fields to a TransformerSpec."""

from collections.abc import Callable
from typing import Any

from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

from .. import limits
from .fields import Fields


def _mixture(fields: Fields, **sizes: Any) -> TransformerSpec:
    fields.only("tie_word_embeddings", False)
    return TransformerSpec(
        style="llama",
        vocab_size=fields.count("vocab_size"),
        context_length=fields.count("max_position_embeddings"),
        hidden_size=fields.count("hidden_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=fields.count("num_attention_heads"),
        **sizes,
    )


def _grouped(fields: Fields, **sizes: Any) -> TransformerSpec:
    heads = fields.count("num_attention_heads")
    return _mixture(
        fields,
        num_kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", None),
        **sizes,
    )


def _experts(fields: Fields, number: str, size: str, **rules: Any) -> Experts:
    return Experts(
        num_experts=fields.count(number),
        per_token=fields.count("num_experts_per_tok"),
        expert_size=fields.count(size),
        **rules,
    )


def _mixtral(fields: Fields) -> TransformerSpec:
    return _grouped(fields, experts=_experts(fields, "num_local_experts", "intermediate_size"))


def _qwen3(fields: Fields) -> TransformerSpec:
    fields.only("attention_bias", False)
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [], None)
    fields.ignore("intermediate_size")  # of layers without experts: there are none
    experts = _experts(fields, "num_experts", "moe_intermediate_size")
    return _grouped(fields, experts=experts, head_norms=True)


def _deepseek(fields: Fields) -> TransformerSpec:
    """DeepSeek-V3, and Kimi K2, which has its architecture."""
    fields.only("attention_bias", False)
    fields.only("moe_layer_freq", 1)
    fields.only("topk_method", "noaux_tc")  # its router has one more number for each expert
    fields.ignore("num_key_value_heads")  # all heads share what is kept of keys and values
    dense = fields.take("first_k_dense_replace", int)
    width = fields.count("intermediate_size")
    shared = fields.take("n_shared_experts", int)
    limits.hold("n_shared_experts", shared, limits.SIZE, least=0)
    return _mixture(
        fields,
        latent=LatentAttention(
            num_heads=fields.count("num_attention_heads"),
            query_rank=fields.count("q_lora_rank"),
            kv_rank=fields.count("kv_lora_rank"),
            plain_size=fields.count("qk_nope_head_dim"),
            rotary_size=fields.count("qk_rope_head_dim"),
            value_size=fields.count("v_head_dim"),
        ),
        experts=_experts(
            fields,
            "n_routed_experts",
            "moe_intermediate_size",
            num_shared=shared,
            choose="sigmoid",
            balance="bias",
        ),
        num_dense=dense,
        ffn_size=width if dense else None,
    )


MIXTURES: dict[str, Callable[[Fields], TransformerSpec]] = {
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3,
    "DeepseekV3ForCausalLM": _deepseek,
}
