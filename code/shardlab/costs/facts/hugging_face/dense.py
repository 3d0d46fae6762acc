"""Architectures with one feed-forward block in a layer: from fields to a TransformerSpec."""

from collections.abc import Callable
from typing import Any

from shardlab.model.spec import TransformerSpec

from .fields import Fields


def rotary(fields: Fields, *, tied: bool = False, **changes: Any) -> TransformerSpec:
    """Rotary positions, RMSNorm, a gate: Llama, and what others changed.

    tied: whether the head is the embedding where the file does not say so.
    """
    return TransformerSpec(
        style="llama",
        vocab_size=fields.count("vocab_size"),
        context_length=fields.count("max_position_embeddings"),
        hidden_size=fields.count("hidden_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=fields.count("num_attention_heads"),
        tied_head=fields.flag("tie_word_embeddings", tied) or None,
        **changes,
    )


def grouped(fields: Fields, **changes: Any) -> TransformerSpec:
    """Heads that may share keys and values, and may be wider or narrower than the model."""
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    head_dim = fields.count("head_dim", None)
    if head_dim and head_dim * heads == fields.config.get("hidden_size"):
        head_dim = None  # as every model has it
    return rotary(fields, num_kv_heads=kv_heads, head_dim=head_dim, **changes)


def _llama(fields: Fields, **changes: Any) -> TransformerSpec:
    return grouped(fields, ffn_size=fields.count("intermediate_size"), **changes)


def _llama_biased(fields: Fields, **changes: Any) -> TransformerSpec:
    """Llama itself, and others whose file may ask for biases."""
    places = ("qkv", "out") * fields.flag("attention_bias", False)
    places += ("ffn",) * fields.flag("mlp_bias", False)
    return _llama(fields, bias_places=places or None, **changes)


def _qwen2(fields: Fields) -> TransformerSpec:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    return _llama(fields, bias_places=("qkv",))


def _qwen3(fields: Fields) -> TransformerSpec:
    """Qwen 3: norms of queries and keys."""
    return _llama(fields, head_norms=True)


def _smollm3(fields: Fields) -> TransformerSpec:
    """SmolLM 3: Llama with a tied head, and without positions in some layers."""
    return _llama_biased(fields, tied=True)


def _after(fields: Fields, **changes: Any) -> TransformerSpec:
    fields.notes.append("norms come after each half of a layer, and are timed as if before it")
    return _llama(fields, **changes)


def _olmo(fields: Fields) -> TransformerSpec:
    """OLMo 2 and 3: norms after each half of a layer, and norms over all heads together."""
    return _after(fields, whole_norms=True)


def _exaone4(fields: Fields) -> TransformerSpec:
    """EXAONE 4: norms after each half of a layer, and norms of each head's queries and keys."""
    return _after(fields, head_norms=True)


def _gemma(fields: Fields, **changes: Any) -> TransformerSpec:
    """Gemma: wide heads, and a head that is the embedding unless the file says otherwise."""
    return _llama(fields, tied=True, **changes)


def _gemma2(fields: Fields) -> TransformerSpec:
    """Gemma 2: a norm after each half of a layer, too."""
    return _gemma(fields, post_norms=True)


def _gemma3(fields: Fields) -> TransformerSpec:
    """Gemma 3 where it reads text only: norms of queries and keys, too."""
    return _gemma(fields, post_norms=True, head_norms=True)


def _gpt2(fields: Fields) -> TransformerSpec:
    """GPT-2, with its own names."""
    fields.only("n_ctx", fields.config.get("n_positions"))
    return TransformerSpec(
        vocab_size=fields.count("vocab_size"),
        context_length=fields.count("n_positions"),
        hidden_size=fields.count("n_embd"),
        num_layers=fields.count("n_layer"),
        num_heads=fields.count("n_head"),
        ffn_size=fields.count("n_inner", None),
        tied_head=fields.flag("tie_word_embeddings", True),
    )


def _neox(fields: Fields) -> TransformerSpec:
    """GPT-NeoX and Pythia: GPT-2's layer with rotary positions."""
    if fields.flag("use_parallel_residual", True):
        fields.notes.append("use_parallel_residual: a layer's halves are timed one after the other")
    biased = fields.flag("attention_bias", True)
    return TransformerSpec(
        vocab_size=fields.count("vocab_size"),
        context_length=fields.count("max_position_embeddings"),
        hidden_size=fields.count("hidden_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=fields.count("num_attention_heads"),
        ffn_size=fields.count("intermediate_size"),
        tied_head=fields.flag("tie_word_embeddings", False),
        position_style="rotary",
        bias_places=None if biased else ("ffn",),
    )


DENSE: dict[str, Callable[[Fields], TransformerSpec]] = {
    "LlamaForCausalLM": _llama_biased,
    "MistralForCausalLM": _llama,
    "Ministral3ForCausalLM": _llama,
    "Phi3ForCausalLM": _llama,
    "GraniteForCausalLM": _llama_biased,
    "SmolLM3ForCausalLM": _smollm3,
    "Olmo2ForCausalLM": _olmo,
    "Olmo3ForCausalLM": _olmo,
    "Exaone4ForCausalLM": _exaone4,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "GemmaForCausalLM": _gemma,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "GPT2LMHeadModel": _gpt2,
    "GPTNeoXForCausalLM": _neox,
}
