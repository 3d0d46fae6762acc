"""Activations: what the forward pass of one microbatch leaves on a rank for backward, by tensor.

The formulas are those of Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198), section 4 and
Table 2, with what they leave out as small (the statistics of norms and softmax) or did not have
(FlashAttention, grouped keys, SwiGLU, no dropout). Matrices, norms and activation functions keep
their inputs; an addition keeps nothing.
"""

from math import ceil

from shardlab.arguments import checked

from ..training import Training

FP32, INT64 = 4, 8  # bytes
STATISTICS = {"gpt2": 2, "llama": 1}  # numbers for each token: a LayerNorm keeps mean and deviation


@checked
def embedding(training: Training) -> dict[str, float]:
    """Count the bytes that the embedding keeps: token numbers, positions, its dropout mask."""
    spec = training.spec
    positions = training.tokens / training.microbatch if spec.style == "gpt2" else 0
    return {
        "token numbers": INT64 * (training.tokens + positions),
        "dropout masks": training.dropout * _between(training) * spec.hidden_size,
    }


@checked
def layer(training: Training) -> dict[str, float]:
    """Count the bytes that one layer keeps under the training's recomputation policy.

    Between the matrices a rank holds whole activations, or with sequence parallelism its part of
    the sequence.
    """
    if training.recomputation == "full":
        numbers = _between(training) * training.spec.hidden_size
        return {"layer input": numbers * training.recipe.element}
    parts = whole_layer(training)
    if training.recomputation == "selective":
        parts["attention: scores"] = 0.0
    return parts


@checked
def whole_layer(training: Training) -> dict[str, float]:
    """Count the bytes that one layer needs for its backward, by tensor.

    Without recomputation it keeps all of them from its forward.
    """
    spec = training.spec
    element = training.recipe.element
    tokens = _between(training)
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


@checked
def head(training: Training) -> dict[str, float]:
    """Count the bytes that the last norm, the head and the loss keep.

    The loss keeps the logarithm of every probability in fp32.
    """
    spec = training.spec
    tokens = _between(training)
    wide = tokens * spec.hidden_size * training.recipe.element
    return {
        "norm: input": wide,
        "norm: statistics": tokens * STATISTICS[spec.style] * FP32,
        "norm: normalized": wide * _unfused_llama(training),
        "head: input": wide,
        "logits": logits(training),
        "targets": INT64 * training.tokens + FP32,  # and the sum of their weights
    }


@checked
def logits(training: Training) -> float:
    """Count the bytes of the fp32 logits: one for each token and word, cut over tp."""
    words = ceil(training.spec.vocab_size / training.layout.tp)
    return FP32 * training.tokens * words


def _attention(training: Training) -> dict[str, float]:
    """Count the bytes between attention's projections: all are cut by heads, so divided by tp."""
    spec = training.spec
    tp = training.layout.tp
    element = training.recipe.element
    tokens = training.tokens
    width = spec.hidden_size / tp
    heads = spec.num_heads / tp
    stored = training.attention == "stored"
    keys = training.layout.kv_heads(spec) * spec.head_size
    if stored and not training.fused:
        keys = round(width)  # torch repeats shared heads before it multiplies
    unfused = _unfused_llama(training)
    rotary = 2 * (tokens / training.microbatch) * spec.head_size  # sin and cos, for q and k
    scores = tokens * heads * training.tokens_per_sequence
    output = tokens * width * element
    return {
        "attention: queries, keys, values": tokens * (width + 2 * keys) * element,
        "attention: rotary tables": unfused * rotary * element,
        "attention: scores": stored * scores * _bytes_per_score(training),
        # FlashAttention keeps the logarithm of the softmax's sum.
        "attention: statistics": (not stored) * tokens * heads * FP32,
        "attention: output": output,
        "attention: output, rearranged": unfused * (not stored) * output,
    }


def _bytes_per_score(training: Training) -> int:
    """Count the bytes kept for each score: the softmax; with dropout its output and a mask."""
    element = training.recipe.element
    return 2 * element + 1 if training.dropout else element


def _hidden(training: Training) -> float:
    """Count the numbers that the feed-forward block's hidden layer keeps for each token.

    Before and after GELU; or gate, up and their product, and without a fused kernel SiLU(gate).
    """
    copies = 2 if training.spec.style == "gpt2" else 4 - training.fused
    return copies * training.spec.ffn / training.layout.tp


def _between(training: Training) -> float:
    """Count a rank's tokens between the matrices: in norms, residuals, and their inputs."""
    return training.tokens / (training.layout.tp if training.layout.sequence_parallel else 1)


def _unfused_llama(training: Training) -> bool:
    return not training.fused and training.spec.style == "llama"
