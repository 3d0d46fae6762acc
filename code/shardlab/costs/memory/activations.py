"""Activations: what the forward pass of one microbatch leaves on a rank for backward, by tensor.

The formulas are those of Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198), section 4 and
Table 2, with what they leave out as small (the statistics of norms and softmax) or did not have
(FlashAttention, grouped keys, SwiGLU, no dropout). Matrices, norms and activation functions keep
their inputs; an addition keeps nothing.
"""

from collections import Counter
from collections.abc import Callable
from math import ceil

from shardlab.files.arguments import checked, unchecked
from shardlab.model.spec import TransformerSpec

from ..training import Training
from . import recurrent as recurrent_layers
from . import routed as mixture
from .routed import FP32, INT64

between, unfused = unchecked(mixture.between), unchecked(mixture.unfused)
hidden, rounded = unchecked(mixture.hidden), unchecked(mixture.rounded)
# What recomputation by operation keeps beside the results of products: what attention returns, what
# a router has chosen, and all of a layer with states.
KEPT_BY_OPERATION = (
    "attention: output",
    "attention: statistics",
    "router: choices",
    "router: scores",
    "routed experts: weights",
    "states: ",
)
STATISTICS = {"gpt2": 2, "llama": 1}  # numbers for each token: a LayerNorm keeps mean and deviation


@checked
def embedding(training: Training) -> dict[str, float]:
    """Count the bytes that the embedding keeps: token numbers, positions, its dropout mask."""
    spec = training.spec
    positions = training.tokens / training.microbatch if spec.positions == "learned" else 0
    return {
        "token numbers": INT64 * (training.tokens + positions),
        "dropout masks": training.dropout * between(training) * spec.hidden_size,
    }


@checked
def layer(training: Training) -> dict[str, float]:
    """Count the bytes that one layer keeps under the training's recomputation policy.

    Between the matrices a rank holds whole activations, or with sequence parallelism its part of
    the sequence. Where some layers are recomputed, the bytes are the mean of a stage's layers.
    """
    if training.recomputed_kinds:
        held: Counter[str] = Counter()
        for share, kind in training.recomputed_kinds:
            held.update({name: share * nbytes for name, nbytes in layer(kind).items()})
        return dict(held)
    if training.recomputation == "full":
        numbers = between(training) * training.spec.hidden_size
        return {"layer input": numbers * training.recipe.element}
    if training.recomputation == "none" and training.program.kernels.repeated:
        return _by_operation(training)
    parts = whole_layer(training)
    if training.recomputation == "selective":
        parts["attention: scores"] = 0.0
    return parts


@checked
def whole_layer(training: Training) -> dict[str, float]:
    """Count the bytes that one layer needs for its backward, by tensor.

    Without recomputation it keeps all of them from its forward. A rank has `Training.imbalance`
    times the mean of the tokens that choose experts. Of a hybrid the bytes are the mean of all
    layers.
    """
    if training.layer_kinds:
        return _mean(training, whole_layer)
    spec = training.spec
    element = training.recipe.element
    tokens = between(training)
    block = hidden(training, dense_width(spec), training.layout.tp)
    read = mixture.read(training)
    wide = tokens * spec.hidden_size * element
    gathered = _matrix_input(training)
    return {
        "norms: input": spec.num_norms * wide,
        "norms: statistics": spec.num_norms * tokens * STATISTICS[spec.style] * FP32,
        "norms: normalized": spec.halves * wide * unfused(training, "norms"),
        "attention: input": gathered * read / element * (not spec.blocks_only),
        **_mixer(training),
        "feed-forward: input": (spec.num_blocks > 0)
        * (gathered if dense_width(spec) else wide)
        * read
        / element,
        "feed-forward: hidden": training.tokens * block,
        **mixture.routed(training),
        "dropout masks": training.dropout * spec.halves * tokens * spec.hidden_size,
    }


@checked
def layer_gradients(training: Training) -> float:
    """Count the bytes of gradients of activations that are there together in a layer's backward.

    Beside the gradient of the residual there are gradients between the matrices of the feed-forward
    block, or between the projections of attention, whichever take more.
    """
    if training.layer_kinds:
        return max(layer_gradients(kind) for _, kind in training.layer_kinds)
    spec = training.spec
    tp = training.layout.tp
    element = training.recipe.element
    residual = between(training) * spec.hidden_size
    numbers = training.tokens * dense_width(spec) / tp
    width = spec.attention_size / tp
    keys = training.layout.kv_heads(spec) * spec.head_size
    between_projections = training.tokens * (2 * width + 2 * keys)
    if training.attention == "stored":  # before and after the softmax
        heads = spec.num_heads / tp
        between_projections += 2 * training.tokens * heads * training.tokens_per_sequence
    between_projections += training.tokens * width * spec.output_gate
    if spec.states_only:
        between_projections = recurrent_layers.gradients(spec.states_only, training.tokens, tp)
    if spec.blocks_only:
        between_projections = 0.0
    feed_forward = numbers * (2 + spec.has_gate)
    if spec.experts:  # of the copies of tokens, on their way back as well as where they came from
        width = spec.experts.expert_size / training.layout.expert_tp
        copy = (2 + spec.has_gate) * width + 2 * spec.hidden_size
        feed_forward += training.imbalance * training.routed_tokens * copy
    return element * (residual + max(feed_forward, between_projections))


@checked
def dense_width(spec: TransformerSpec) -> int:
    """Return the width of what every token uses: of the feed-forward block, or shared experts."""
    if not spec.num_blocks:
        return 0
    return spec.experts.shared_size if spec.experts else spec.ffn


@checked
def head(training: Training) -> dict[str, float]:
    """Count the bytes that the last norm, the head and the loss keep.

    The loss keeps the logarithm of every probability in fp32.
    """
    spec = training.spec
    tokens = between(training)
    wide = tokens * spec.hidden_size * training.recipe.element
    return {
        "norm: input": wide,
        "norm: statistics": tokens * STATISTICS[spec.style] * FP32,
        "norm: normalized": wide * unfused(training, "norms"),
        "head: input": _matrix_input(training),
        "logits": logits(training),
        "targets": INT64 * training.tokens + FP32,  # and the sum of their weights
    }


@checked
def logits(training: Training) -> float:
    """Count the bytes of the logits: one for each token and word, see `training.LOSSES`."""
    words = ceil(training.spec.vocab_size / training.layout.tp)
    if training.program.loss == "whole":
        words = training.spec.vocab_size
    element = training.recipe.element if training.program.loss == "fused" else FP32
    return training.tokens * words * element


@checked
def loss(training: Training) -> float:
    """Count the bytes that the loss holds beside the logits while its backward runs."""
    kept = logits(training)
    cut = training.layout.tp > 1
    beside = {
        "torch": (2 + cut) * kept,
        "parallel": 2 * kept,  # gradients before and after the softmax
        "whole": 2 * kept + kept * training.recipe.element / FP32,  # and what was cast
        "in place": kept * training.recipe.element / FP32,  # the gradient, cast for the head
        "fused": kept,
    }
    return beside[training.program.loss]


def _matrix_input(training: Training) -> float:
    """Count the bytes of what enters a layer's first matrices, or the head, as the program keeps it."""
    tokens = training.tokens if training.program.keeps_gathered else between(training)
    return tokens * training.spec.hidden_size * training.recipe.element


@checked
def results(training: Training) -> list[tuple[str, float, float, float]]:
    """List the products of a layer on a rank one by one: the result's name, tokens, inputs, outputs.

    The names are those of `program.PRODUCTS`. Routed experts and the block that every token uses
    have them both. Latent attention and layers with states have none before their output.
    """
    spec = training.spec
    tp = training.layout.tp
    found: list[tuple[str, float, float, float]] = []
    if not (spec.blocks_only or spec.states_only or spec.latent):
        width = spec.attention_size / tp
        keys = training.layout.kv_heads(spec) * spec.head_size
        for name, outputs in (("queries", width), ("keys", keys), ("values", keys)):
            found.append((name, training.tokens, spec.hidden_size, outputs))
        found.append(("output", training.tokens, width, spec.hidden_size))
    blocks = [(float(training.tokens), dense_width(spec) / tp)]
    if spec.experts:
        rows = training.imbalance * training.routed_tokens
        blocks.append((rows, spec.experts.expert_size / training.layout.expert_tp))
    for tokens, width in blocks:
        for name in ("gate", "up")[not spec.has_gate :]:
            found.append((name, tokens, spec.hidden_size, width))
        found.append(("down", tokens, width, spec.hidden_size))
    return [each for each in found if each[1] * each[2]]


def _by_operation(training: Training) -> dict[str, float]:
    """Count the bytes of a layer that keeps the results of its products and of attention alone.

    It keeps its input, too, and what a router has chosen; products in `Kernels.repeated` and all
    other operations run again.
    """
    if training.layer_kinds:
        return _mean(training, _by_operation)
    element = training.recipe.element
    whole = whole_layer(training)
    held = {"layer input": between(training) * training.spec.hidden_size * element}
    for name, tokens, _, outputs in results(training):
        part = f"result: {name}"
        if name not in training.program.kernels.repeated:
            held[part] = held.get(part, 0.0) + tokens * outputs * element
    return held | {name: n for name, n in whole.items() if name.startswith(KEPT_BY_OPERATION)}


def _mean(training: Training, count: Callable[[Training], dict[str, float]]) -> dict[str, float]:
    """Count the bytes of a hybrid's mean layer."""
    total: dict[str, float] = {}
    for share, kind in training.layer_kinds:
        for name, nbytes in count(kind).items():
            total[name] = total.get(name, 0.0) + share * nbytes
    return total


def _mixer(training: Training) -> dict[str, float]:
    """Count the bytes of attention, or of what stands in its place."""
    spec = training.spec
    if spec.blocks_only:
        return {"attention: scores": 0.0}
    if spec.states_only:
        held = recurrent_layers.kept(
            spec.states_only, training.tokens, training.layout.tp, training.recipe.element
        )
        return {**held, "attention: scores": 0.0}
    numbers = spec.query_norms * queries_and_keys(training)
    return {"norms: queries and keys": numbers * training.recipe.element, **_attention(training)}


def _attention(training: Training) -> dict[str, float]:
    """Count the bytes between attention's projections: all are cut by heads, so divided by tp."""
    spec = training.spec
    tp = training.layout.tp
    element = training.recipe.element
    tokens = training.tokens
    width = spec.attention_size / tp
    heads = spec.num_heads / tp
    stored = training.attention == "stored"
    keys = training.layout.kv_heads(spec) * spec.head_size
    if stored and "attention" in training.program.unfused:
        keys = round(width)  # torch repeats shared heads before it multiplies
    rotary = 2 * (tokens / training.microbatch) * spec.head_size  # sin and cos, for q and k
    scores = tokens * heads * training.tokens_per_sequence
    output = tokens * width * element
    qkv = width + 2 * keys
    qkv += 2 * width * spec.output_gate  # the gate, and what it leaves of the output
    if spec.latent:  # narrow layers before and after their norms, then whole heads
        output = tokens * heads * spec.latent.value_size * element
        qkv = 2 * spec.latent.narrow_size + spec.latent.index_size
        qkv += heads * (2 * spec.latent.query_size + spec.latent.value_size)
    return {
        "attention: queries, keys, values": tokens * qkv * element,
        "attention: rotary tables": unfused(training, "rotary") * rotary * element,
        "attention: scores": stored * scores * _bytes_per_score(training),
        # FlashAttention keeps the logarithm of the softmax's sum.
        "attention: statistics": (not stored) * tokens * heads * FP32,
        "attention: output": output,
        # Attention keeps it as it is, and the product that reads it rounded.
        "attention: rounded output": rounded(training) * output / element,
        "attention: rearranged output": unfused(training, "attention") * (not stored) * output,
    }


@checked
def queries_and_keys(training: Training) -> float:
    """Count the numbers of a microbatch's queries and keys on a rank."""
    spec = training.spec
    layout = training.layout
    width = spec.attention_size / layout.tp + layout.kv_heads(spec) * spec.head_size
    return training.tokens * width


def _bytes_per_score(training: Training) -> int:
    """Count the bytes kept for each score: the softmax; with dropout its output and a mask.

    Unfused, the softmax runs in fp32 and is cast, as under torch.autocast.
    """
    element = training.recipe.element
    softmax = FP32 if "attention" in training.program.unfused and element < FP32 else 0
    return softmax + (2 * element + 1 if training.dropout else element)
