"""Seconds that a rank computes for one layer, the embedding and the head, by part.

Every matrix product is timed for the sizes that remain on one rank (`kernels`). For norms,
activation functions, additions, softmax and dropout, every number read or written is counted.
Messages are in `exposed`.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from shardlab.arguments import checked, unchecked

from ..facts.hardware import Chip
from ..tensor_parallel import BETWEEN_BACKWARD, BETWEEN_FORWARD
from ..training import Training
from . import kernels
from .kernels import flash_seconds

matmul_seconds = unchecked(kernels.matmul_seconds)  # called twenty times for one layer
moved_seconds = unchecked(kernels.moved_seconds)

FP32 = 4
# Numbers read and written for each number of the feed-forward block's hidden layer, in forward and
# backward. GELU reads one and writes one; its backward reads two and writes one. A gate makes that
# two and one, and three and two.
ACTIVATION = {"gpt2": (2, 3), "llama": (3, 5)}
# Bytes of the dropout mask for each number that may be dropped, once in each half of a layer. Its
# backward is a pass of its own.
MASK = 1
FLASH_BACKWARD = 2.5  # FlashAttention's backward has five products, its forward has two


class PassTime(NamedTuple):
    """Seconds of one pass through a layer."""

    matrices: float
    attention: float
    between: float  # norms, activation functions, additions, dropout

    @property
    def seconds(self) -> float:
        """Sum all three parts."""
        return sum(self)


@dataclass(frozen=True, kw_only=True)
@checked
class LayerTime:
    """Seconds that one rank computes for one layer and one microbatch, without messages."""

    forward: PassTime
    backward: PassTime
    recomputed: float  # within backward
    # Forward seconds of the matrices that read x, in attention and in the feed-forward block.
    entering: tuple[float, float]
    # Forward seconds of the matrices whose results are summed over ranks.
    leaving: tuple[float, float]

    @property
    def backward_seconds(self) -> float:
        """Seconds of backward, recomputation included."""
        return self.backward.seconds + self.recomputed


@checked
def layer(training: Training, chip: Chip, precision: str | None = None) -> LayerTime:
    """Time what a rank computes for one layer.

    precision: of the four or five matrices; None: the chip's training precision.
    """
    sizes = matrices(training)
    products = [matmul_seconds(*size, chip, precision=precision) for size in sizes]
    gradients = sum(_gradient_seconds(*size, chip, precision) for size in sizes)
    attention, attention_backward = _attention(training, chip)
    between = moved_seconds(_forward_bytes(training, precision), chip)
    between_backward = moved_seconds(_backward_bytes(training, precision), chip)
    forward = PassTime(sum(products), attention, between)
    recomputed = {
        "none": 0.0,
        "selective": attention if training.attention == "stored" else 0.0,
        "full": forward.seconds,
    }
    return LayerTime(
        forward=forward,
        backward=PassTime(gradients, attention_backward, between_backward),
        recomputed=recomputed[training.recomputation],
        entering=(products[0], products[2]),
        leaving=(products[1], products[3]),
    )


@checked
def matrices(training: Training) -> list[tuple[int, int, int]]:
    """List the products of one rank as (tokens, inputs, outputs), in order of forward.

    [tokens, inputs] times [inputs, outputs]: queries, keys and values; attention's output; up (and
    gate); down.
    """
    spec = training.spec
    tp = training.layout.tp
    tokens = training.tokens
    keys = training.layout.kv_heads(spec) * spec.head_size
    width = spec.hidden_size // tp
    hidden = spec.ffn // tp
    readers = 1 if spec.style == "gpt2" else 2  # matrices of the feed-forward block that read x
    return [
        (tokens, spec.hidden_size, width + 2 * keys),
        (tokens, width, spec.hidden_size),
        (tokens, spec.hidden_size, readers * hidden),
        (tokens, hidden, spec.hidden_size),
    ]


@checked
def head_seconds(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of the last norm, the head and the loss."""
    tokens = training.tokens
    hidden = training.spec.hidden_size
    element = training.recipe.element
    words = ceil(training.spec.vocab_size / training.layout.tp)
    forward = matmul_seconds(tokens, hidden, words, chip)
    backward = matmul_seconds(tokens, words, hidden, chip)
    backward += matmul_seconds(hidden, tokens, words, chip, written=2 * FP32)
    # The loss reads the logits, and writes and reads them in fp32; its backward reads those and
    # writes gradients.
    loss = moved_seconds(tokens * words * (element + 2 * FP32), chip)
    loss_backward = moved_seconds(tokens * words * (FP32 + element), chip)
    return forward + loss, backward + loss_backward


@checked
def embedding_seconds(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of the embedding.

    Forward reads and writes every number once. Backward reads it and adds it to an fp32 gradient.
    """
    numbers = training.tokens * training.spec.hidden_size
    element = training.recipe.element
    forward = moved_seconds(2 * element * numbers, chip)
    return forward, moved_seconds((element + 2 * FP32) * numbers, chip)


def _gradient_seconds(m: int, k: int, n: int, chip: Chip, precision: str | None) -> float:
    """Time the gradients of a matrix's input and of the matrix, summed over microbatches.

    The product itself reads and writes the sum in fp32, eight bytes for each number. A separate
    kernel that adds in 16 bits moves as many bytes: the product writes one number, the kernel reads
    two and writes one.
    """
    of_input = matmul_seconds(m, n, k, chip, precision=precision)
    return of_input + matmul_seconds(k, m, n, chip, precision=precision, written=2 * FP32)


def _attention(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of attention, from queries by keys to scores by values."""
    spec = training.spec
    layout = training.layout
    sequence = training.tokens_per_sequence
    if training.attention == "flash":
        pairs = training.microbatch * sequence * (sequence + 1) / 2 / layout.cp
        forward = flash_seconds(pairs, spec.hidden_size / layout.tp, chip)
        return forward, FLASH_BACKWARD * forward
    heads = training.microbatch * spec.num_heads // layout.tp
    rows = sequence // layout.cp
    products = matmul_seconds(rows, spec.head_size, sequence, chip, count=heads)
    products += matmul_seconds(rows, sequence, spec.head_size, chip, count=heads)
    scores = heads * rows * sequence
    element = training.recipe.element
    dropout = training.dropout * (2 * element + MASK)
    softmax = moved_seconds(scores * (2 * element + dropout), chip)
    softmax_backward = moved_seconds(scores * (3 * element + dropout), chip)
    return products + softmax, 2 * products + softmax_backward


def _forward_bytes(training: Training, precision: str | None) -> float:
    """Count the bytes that forward reads and writes between the matrices of a layer."""
    per_hidden, _ = ACTIVATION[training.spec.style]
    moved = BETWEEN_FORWARD * _stream(training) + per_hidden * _hidden(training)
    nbytes = training.recipe.element * moved + MASK * _dropped(training) + _rotated_bytes(training)
    if precision == "fp8":  # a cast reads two bytes of every input, and writes two casts of it
        nbytes += 4 * sum(m * k for m, k, _ in matrices(training))
    return nbytes


def _backward_bytes(training: Training, precision: str | None) -> float:
    """Count the bytes that backward reads and writes between the matrices of a layer."""
    element = training.recipe.element
    _, per_hidden = ACTIVATION[training.spec.style]
    moved = BETWEEN_BACKWARD * _stream(training) + per_hidden * _hidden(training)
    dropout = (MASK + 2 * element) * _dropped(training)
    nbytes = element * moved + dropout + _rotated_bytes(training)
    if precision == "fp8":  # likewise, for the gradients of the outputs
        nbytes += 4 * sum(m * n for m, _, n in matrices(training))
    return nbytes


def _stream(training: Training) -> float:
    """Count the numbers of the residual stream on a rank: whole, or its part of the sequence."""
    sharing = training.layout.tp if training.layout.sequence_parallel else 1
    return training.tokens / sharing * training.spec.hidden_size


def _hidden(training: Training) -> float:
    """Count the numbers of the feed-forward block's hidden layer on a rank."""
    return training.tokens * training.spec.ffn / training.layout.tp


def _dropped(training: Training) -> float:
    """Count the numbers that dropout may drop in a layer."""
    return 2 * training.dropout * _stream(training)


def _rotated_bytes(training: Training) -> float:
    """Count the bytes that rotating queries and keys reads and writes."""
    spec = training.spec
    layout = training.layout
    if spec.style != "llama":
        return 0.0
    width = spec.hidden_size / layout.tp + layout.kv_heads(spec) * spec.head_size
    return 2 * training.recipe.element * training.tokens * width
