"""Architectures with latent attention: DeepSeek-V2, V3, V3.2, Kimi K2, which is a V3, and GLM-5."""

from collections.abc import Callable, Mapping
from typing import Any

from shardlab.model.attention import Indexer, LatentAttention
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from .dense import rotary
from .fields import Fields
from .mixtures import BIASED, experts, first_dense


def deepseek(
    fields: Fields,
    rules: Mapping[str, Any],
    *,
    indexer: Indexer | None = None,
    recurrent: Recurrent | None = None,
) -> TransformerSpec:
    """Take latent attention and experts by DeepSeek's names; `rules` say how a router chooses."""
    fields.only("moe_layer_freq", 1)
    # All heads share what is kept of keys and values; a head's size follows from its parts.
    fields.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    dense = fields.count("first_k_dense_replace", 0, least=0)
    return rotary(
        fields,
        **first_dense(fields, dense),
        latent=LatentAttention(
            num_heads=fields.count("num_attention_heads"),
            query_rank=fields.count("q_lora_rank", None),
            kv_rank=fields.count("kv_lora_rank"),
            plain_size=fields.count("qk_nope_head_dim"),
            rotary_size=fields.count("qk_rope_head_dim"),
            value_size=fields.count("v_head_dim"),
            indexer=indexer,
        ),
        recurrent=recurrent,
        experts=experts(
            fields,
            "n_routed_experts",
            "moe_intermediate_size",
            num_shared=fields.count("n_shared_experts", 0, least=0),
            **rules,
        ),
    )


def _deepseek_v2(fields: Fields) -> TransformerSpec:
    fields.only("topk_method", "greedy", "group_limited_greedy")
    return deepseek(fields, {"choose": "softmax before"})


def _deepseek_v3(fields: Fields, indexer: Indexer | None = None) -> TransformerSpec:
    fields.only("topk_method", "noaux_tc")  # its router has one more number for each expert
    fields.only("scoring_func", "sigmoid")
    return deepseek(fields, BIASED, indexer=indexer)


def _indexed(fields: Fields) -> TransformerSpec:
    """DeepSeek-V3.2 and GLM-5, with an indexer in every layer."""
    count = fields.count("num_hidden_layers")
    fields.only("indexer_types", ["full"] * count, None)  # other layers would share theirs
    fields.only("index_topk_freq", 1)
    fields.only("index_topk_pattern", None)
    fields.ignore("indexer_rope_interleave", "index_skip_topk_offset")
    fields.attentions |= {"indexed_attention"}
    indexer = Indexer(
        num_heads=fields.count("index_n_heads"),
        head_size=fields.count("index_head_dim"),
        chosen=fields.count("index_topk"),
    )
    fields.notes.append(
        f"index_topk={indexer.chosen}: attention is timed over all earlier tokens, and the "
        "indexer's scores are not timed"
    )
    return _deepseek_v3(fields, indexer)


LATENT: dict[str, Callable[[Fields], TransformerSpec]] = {
    "DeepseekV2ForCausalLM": _deepseek_v2,
    "DeepseekV3ForCausalLM": _deepseek_v3,
    "DeepseekV32ForCausalLM": _indexed,
    "GlmMoeDsaForCausalLM": _indexed,
}
