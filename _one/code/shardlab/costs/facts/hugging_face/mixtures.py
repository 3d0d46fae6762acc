"""Architectures whose layers have experts: from fields to a MixtureSpec."""

from collections.abc import Callable
from typing import Any

from shardlab.attention import GroupedAttention, LatentAttention

from ..mixtures import MixtureSpec
from .fields import Fields


def _mixture(fields: Fields, **sizes: Any) -> MixtureSpec:
    fields.only("tie_word_embeddings", False)
    fields.ignore("max_position_embeddings")  # `reading` takes it
    return MixtureSpec(
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        num_layers=fields.count("num_hidden_layers"),
        experts_per_token=fields.count("num_experts_per_tok"),
        **sizes,
    )


def _grouped(fields: Fields, *, head_norms: bool = False) -> GroupedAttention:
    heads = fields.count("num_attention_heads")
    size = fields.count("head_dim", None)
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", heads),
        head_size=size or fields.count("hidden_size") // heads,
        head_norms=head_norms,
    )


def _mixtral(fields: Fields) -> MixtureSpec:
    return _mixture(
        fields,
        attention=_grouped(fields),
        num_experts=fields.count("num_local_experts"),
        expert_size=fields.count("intermediate_size"),
    )


def _qwen3(fields: Fields) -> MixtureSpec:
    fields.only("attention_bias", False)
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [], None)
    fields.ignore("intermediate_size")  # of layers without experts: there are none
    return _mixture(
        fields,
        attention=_grouped(fields, head_norms=True),
        num_experts=fields.count("num_experts"),
        expert_size=fields.count("moe_intermediate_size"),
    )


def _deepseek(fields: Fields) -> MixtureSpec:
    """DeepSeek-V3, and Kimi K2, which has its architecture."""
    fields.only("attention_bias", False)
    fields.only("moe_layer_freq", 1)
    fields.only("topk_method", "noaux_tc")  # its router has one more number for each expert
    fields.ignore("num_key_value_heads")  # all heads share what is kept of keys and values
    return _mixture(
        fields,
        attention=LatentAttention(
            num_heads=fields.count("num_attention_heads"),
            query_rank=fields.count("q_lora_rank"),
            kv_rank=fields.count("kv_lora_rank"),
            plain_size=fields.count("qk_nope_head_dim"),
            rotary_size=fields.count("qk_rope_head_dim"),
            value_size=fields.count("v_head_dim"),
        ),
        num_experts=fields.count("n_routed_experts"),
        expert_size=fields.count("moe_intermediate_size"),
        num_shared_experts=fields.take("n_shared_experts", int),
        num_dense_layers=fields.take("first_k_dense_replace", int),
        dense_size=fields.count("intermediate_size"),
        router_bias=True,
    )


MIXTURES: dict[str, Callable[[Fields], MixtureSpec]] = {
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3,
    "DeepseekV3ForCausalLM": _deepseek,
}
