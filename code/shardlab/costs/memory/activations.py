"""Activations: what the forward pass of one microbatch leaves on a rank for the backward pass, tensor by tensor.

The formulas are those of Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198), section 4 and Table 2, with what
they leave out as small (the statistics of norms and softmax) or did not have (FlashAttention, grouped keys, SwiGLU, no
dropout). Matrices, norms and activation functions keep their inputs; an addition keeps nothing.
"""

from math import ceil

from ..training import Training

FP32, INT64 = 4, 8  # bytes
STATISTICS = {"gpt2": 2, "llama": 1}  # a LayerNorm keeps mean and deviation of each token, an RMSNorm one number


def embedding(training: Training) -> dict[str, float]:
    """Bytes kept by the embedding: token numbers, learned positions' numbers, the mask of its dropout."""
    spec = training.spec
    positions = training.tokens / training.microbatch if spec.style == "gpt2" else 0
    return {
        "token numbers": INT64 * (training.tokens + positions),
        "dropout masks": training.dropout * _between(training) * spec.hidden_size,
    }


def layer(training: Training) -> dict[str, float]:
    """Bytes kept by one layer, as the recomputation policy has it.

    Between the matrices a rank holds whole activations, or with sequence parallelism a part of the sequence.
    """
    if training.recomputation == "full":
        return {"layer input": _between(training) * training.spec.hidden_size * training.recipe.element}
    parts = whole_layer(training)
    return {**parts, "attention: scores": 0.0} if training.recomputation == "selective" else parts


def whole_layer(training: Training) -> dict[str, float]:
    """Bytes that one layer needs for its backward: what it keeps without recomputation."""
    spec, element, tokens = training.spec, training.recipe.element, _between(training)
    wide = tokens * spec.hidden_size * element
    return {
        "norms: input": 2 * wide,
        "norms: statistics": 2 * tokens * STATISTICS[spec.style] * FP32,
        "norms: normalized": 2 * wide * _unfused_llama(training),
        "attention: input": wide,
        **_attention(training),
        "feed-forward: input": wide,
        "feed-forward: hidden": training.tokens * _hidden(training) * element,
        "dropout masks": training.dropout * 2 * tokens * spec.hidden_size,
    }


def head(training: Training) -> dict[str, float]:
    """Bytes kept by the last norm, the head and the loss, which keeps the logarithm of every probability in fp32."""
    spec, tokens = training.spec, _between(training)
    wide = tokens * spec.hidden_size * training.recipe.element
    return {
        "norm: input": wide,
        "norm: statistics": tokens * STATISTICS[spec.style] * FP32,
        "norm: normalized": wide * _unfused_llama(training),
        "head: input": wide,
        "logits": logits(training),
        "targets": INT64 * training.tokens + FP32,  # and the sum of their weights
    }


def logits(training: Training) -> float:
    """Bytes of one fp32 number for each token and each word of the vocabulary, which the ranks of tp share."""
    return FP32 * training.tokens * ceil(training.spec.vocab_size / training.layout.tp)


def _attention(training: Training) -> dict[str, float]:
    """Between the projections: every tensor is cut by heads, so divided by tp."""
    spec, element, tokens = training.spec, training.recipe.element, training.tokens
    width, stored = spec.hidden_size / training.layout.tp, training.attention == "stored"
    keys = training.layout.kv_heads(spec) * spec.head_size
    if stored and not training.fused:
        keys = round(width)  # torch repeats shared heads before it multiplies
    heads, unfused = spec.num_heads / training.layout.tp, _unfused_llama(training)
    length = training.tokens / training.microbatch
    return {
        "attention: queries, keys, values": tokens * (width + 2 * keys) * element,
        "attention: rotary tables": unfused * 2 * length * spec.head_size * element,  # sin and cos, for q and k
        "attention: scores": stored * tokens * heads * training.tokens_per_sequence * _bytes_per_score(training),
        "attention: statistics": (not stored) * tokens * heads * FP32,  # the logarithm of the softmax's sum
        "attention: output": tokens * width * element,
        "attention: output, rearranged": unfused * (not stored) * tokens * width * element,
    }


def _bytes_per_score(training: Training) -> int:
    """The softmax; with dropout its output, and a mask of one byte."""
    element = training.recipe.element
    return 2 * element + 1 if training.dropout else element


def _hidden(training: Training) -> float:
    """Numbers per token: before and after GELU; or gate, up and the product, and without a fused kernel SiLU(gate)."""
    return (2 if training.spec.style == "gpt2" else 4 - training.fused) * training.spec.ffn / training.layout.tp


def _between(training: Training) -> float:
    """Tokens of a rank where it holds them whole: norms, residual stream, inputs of the first matrices."""
    return training.tokens / (training.layout.tp if training.layout.sequence_parallel else 1)


def _unfused_llama(training: Training) -> bool:
    return not training.fused and training.spec.style == "llama"
