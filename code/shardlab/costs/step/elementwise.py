"""Bytes that one layer moves between its matrix products: norms, activations, additions, dropout.

Every number that is read or written is counted.
"""

from shardlab.files.arguments import checked

from ..memory import activations
from ..training import Training
from .products import expert_matrices, matrices

# Numbers read and written by norms and additions for each of a token's hidden numbers, each being
# one kernel: a norm reads one and writes one, an addition to the residual reads two and writes one.
# In backward a norm reads the gradient and its input and writes one, and the gradients of both
# branches are added. Once in each half of a layer.
BETWEEN_FORWARD, BETWEEN_BACKWARD = 2 + 3, 3 + 3
# Numbers read and written for each number of the feed-forward block's hidden layer, in forward and
# backward. GELU reads one and writes one; its backward reads two and writes one. A gate makes that
# two and one, and three and two.
ACTIVATION = {"gpt2": (2, 3), "llama": (3, 5)}
# Numbers read and written by a norm for each number of its input, in forward and backward. Those of
# the residual stream are in BETWEEN_FORWARD and BETWEEN_BACKWARD, but for what `post_norms` adds.
NORM_FORWARD, NORM_BACKWARD = 2, 3
# Numbers read and written for each number of a token's copy for an expert. Forward copies it, then
# weights it and adds it up. Backward copies the gradient, weights it, reads the expert's output for
# the weight's gradient, and adds up.
COPIED_FORWARD, COPIED_BACKWARD = 4, 5
# Numbers read and written, in forward and backward, for each number of an output that a gate
# weights (and that a norm scales first, in the same kernel), and of what a convolution reads.
GATED, CONVOLVED = (3, 5), (2, 3)
# Bytes of the dropout mask for each number that may be dropped, once in each half of a layer. Its
# backward is a pass of its own.
MASK = 1
# What eager torch moves beyond that for Llama's operations, in bytes for each number, forward and
# backward, from the chain of its operations: x -> fp32, x^2, mean, x * rstd, -> 16 bits, * weight
# for a norm (fused: 4 and 6); -> fp32, times a complex number, -> 16 bits for a rotation (4 and 4);
# SiLU and product by themselves (6 and 10).
EAGER_NORM = 36 - 4, 76 - 6
EAGER_ROTATION = 20 - 4, 20 - 4
EAGER_GATE = 10 - 6, 18 - 10
# What torch's own kernel of RMSNorm moves beyond a fused one, in numbers: it reaches 0.56 of the
# memory's rate where others reach 0.8 (bench/results/gpu_operations.json), and in backward a second
# kernel reads its input and the gradient again for that of its weight.
TORCH_NORM = 2 * 0.8 / 0.56 - 2, 5 * 0.8 / 0.56 - 3
# An addition of two gradients of one input: two numbers are read and one is written.
ADDED = 3


@checked
def forward_bytes(training: Training) -> float:
    """Count the bytes that forward reads and writes between the matrices of a layer."""
    per_hidden, _ = _activation(training)
    moved = BETWEEN_FORWARD * _halves(training) + per_hidden * _hidden(training)
    moved += NORM_FORWARD * _further_norms(training) + COPIED_FORWARD * _copies(training)
    moved += _gated(training, 0)
    nbytes = training.recipe.element * moved + MASK * _dropped(training) + _rotated_bytes(training)
    if (
        training.precision == "fp8"
    ):  # a cast reads two bytes of every input, and writes two casts of it
        cast = sum(m * k for m, k, _ in matrices(training)) + _cast(training, 1)
        nbytes += (4 + 2 * training.program.kernels.scales_anew) * cast
    return nbytes


@checked
def backward_bytes(training: Training) -> float:
    """Count the bytes that backward reads and writes between the matrices of a layer."""
    element = training.recipe.element
    _, per_hidden = _activation(training)
    moved = BETWEEN_BACKWARD * _halves(training) + per_hidden * _hidden(training)
    moved += NORM_BACKWARD * _further_norms(training) + COPIED_BACKWARD * _copies(training)
    moved += _biased(training) + _gated(training, 1)
    dropout = (MASK + 2 * element) * _dropped(training)
    nbytes = element * moved + dropout + _rotated_bytes(training)
    if training.precision == "fp8":  # likewise, for the gradients of the outputs
        cast = sum(m * n for m, _, n in matrices(training)) + _cast(training, 2)
        nbytes += (4 + 2 * training.program.kernels.scales_anew) * cast
    return nbytes


def _activation(training: Training) -> tuple[int, int]:
    """Return the passes over the hidden layer, with a gate or without."""
    return ACTIVATION["llama" if training.spec.has_gate else "gpt2"]


@checked
def eager_bytes(training: Training) -> tuple[float, float]:
    """Count what eager operations move beyond fused ones, in forward and in backward.

    GPT's layer norm and GELU are one operation each in torch already.
    """
    apart = "products of one input" in training.program.unfused
    added = training.recipe.element * ADDED * apart * _added(training)
    if training.spec.style != "llama":
        return 0.0, added
    norms = training.recipe.element * training.program.kernels.torch_norms * _halves(training)
    moved = (
        ("norms", _halves(training), EAGER_NORM),
        ("rotary", _rotated_bytes(training) / (2 * training.recipe.element), EAGER_ROTATION),
        ("SwiGLU", training.spec.has_gate * _hidden(training), EAGER_GATE),
    )
    each = [row for row in moved if row[0] in training.program.unfused]
    return (
        norms * TORCH_NORM[0] + sum(n * way[0] for _, n, way in each),
        norms * TORCH_NORM[1] + added + sum(n * way[1] for _, n, way in each),
    )


def _added(training: Training) -> float:
    """Count the numbers that additions make of a layer's inputs' gradients: of q, k and v two, of
    gate and up one. A rank of tp adds those of all tokens before they are summed over ranks.
    """
    spec = training.spec
    mixes = not spec.blocks_only and not spec.states_only
    feeds = spec.has_gate and activations.dense_width(spec) > 0
    return (2 * mixes + feeds) * training.tokens * spec.hidden_size


def _cast(training: Training, dim: int) -> int:
    """Count the numbers of the inputs (dim 1) or outputs (dim 2) of a rank's routed experts."""
    if training.spec.experts is None:
        return 0
    held, sizes = expert_matrices(training)
    return held * sum(size[0] * size[dim] for size in sizes)


def _stream(training: Training) -> float:
    """Count the numbers of the residual stream on a rank: whole, or its part of the sequence."""
    sharing = training.layout.tp if training.layout.sequence_parallel else 1
    return training.tokens / sharing * training.spec.hidden_size


def _halves(training: Training) -> float:
    """Count the numbers of the residual stream at the entrances of a layer's halves."""
    return training.spec.halves * _stream(training)


def _hidden(training: Training) -> float:
    """Count the numbers of the feed-forward block's hidden layer on a rank, of all its experts."""
    spec = training.spec
    numbers = training.tokens * activations.dense_width(spec) / training.layout.tp
    if spec.experts:
        width = spec.experts.expert_size / training.layout.expert_tp
        numbers += training.routed_tokens * width
    return numbers


def _copies(training: Training) -> float:
    """Count the numbers of all copies of tokens that a rank's routed experts compute."""
    return training.routed_tokens * training.spec.hidden_size


def _further_norms(training: Training) -> float:
    """Count the numbers that go into norms of heads, and into norms after each half of a layer."""
    spec = training.spec
    after = (spec.num_norms - spec.halves) * _stream(training)
    if spec.blocks_only:
        return after
    if states := spec.states_only:  # a delta rule's queries and keys have a length of 1, no scale
        return after + training.tokens * 2 * states.keys * states.corrects / training.layout.tp
    return after + spec.query_norms * activations.queries_and_keys(training)


def _gated(training: Training, way: int) -> float:
    """Count the numbers moved by gates of attention's output, and by convolutions before states.

    way: 0 forward, 1 backward.
    """
    spec, ranks = training.spec, training.layout.tp
    if states := spec.states_only:
        numbers = CONVOLVED[way] * states.convolved + GATED[way] * states.values
        return training.tokens * numbers / ranks
    return spec.output_gate * GATED[way] * training.tokens * spec.attention_size / ranks


def _biased(training: Training) -> float:
    """Count the numbers that get a bias: its gradient is one more pass over theirs."""
    spec = training.spec
    places = zip(("qkv", "out", "ffn", "ffn", "ffn"), matrices(training), strict=False)
    numbers = float(sum(m * n for place, (m, _, n) in places if place in spec.biases))
    if spec.experts and "ffn" in spec.biases:
        width = (1 + spec.has_gate) * spec.experts.expert_size / training.layout.expert_tp
        numbers += training.routed_tokens * (width + spec.hidden_size)
    return numbers


def _dropped(training: Training) -> float:
    """Count the numbers that dropout may drop in a layer."""
    return training.dropout * _halves(training)


def _rotated_bytes(training: Training) -> float:
    """Count the bytes that rotating queries and keys reads and writes."""
    spec = training.spec
    if spec.positions != "rotary" or spec.states_only or spec.blocks_only:
        return 0.0
    return 2 * training.recipe.element * activations.queries_and_keys(training)
