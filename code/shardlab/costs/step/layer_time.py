"""One layer, the embedding and the head on one rank: seconds of everything they compute, by part.

Every product of matrices is timed for the sizes that are left on a rank (`kernels`), and every number that norms,
activation functions, additions, softmax and dropout read or write is counted. Messages are in `exposed`.
"""

from math import ceil
from typing import NamedTuple

from ..facts.hardware import Chip
from ..tensor_parallel import BETWEEN_BACKWARD, BETWEEN_FORWARD
from ..training import Training
from .kernels import flash_seconds, matmul_seconds, moved_seconds

FP32 = 4
# Numbers read and written for each number of the feed-forward block's hidden layer: GELU reads one and writes one, its
# backward reads two and writes one; a gate makes it two and one, and three and two.
ACTIVATION = {"gpt2": (2, 3), "llama": (3, 5)}
# Bytes for each number that may be dropped, once in a half of a layer: the mask. Its backward is a pass of its own.
MASK = 1
FLASH_BACKWARD = 2.5  # products of FlashAttention's backward, of those of its forward: five to two


class Pass(NamedTuple):
    """Seconds of one pass through a layer."""

    matrices: float
    attention: float
    between: float  # norms, activation functions, additions, dropout

    @property
    def seconds(self) -> float:
        return sum(self)


class LayerTime(NamedTuple):
    """One layer and one microbatch on one rank, messages left out."""

    forward: Pass
    backward: Pass
    recomputed: float  # seconds, within backward
    entering: tuple[float, float]  # forward seconds of the matrices that read x, of attention and feed-forward block
    leaving: tuple[float, float]  # of those whose results are summed over ranks

    @property
    def backward_seconds(self) -> float:
        """With what is computed again."""
        return self.backward.seconds + self.recomputed


def layer(training: Training, chip: Chip, precision: str | None = None) -> LayerTime:
    """What a rank computes for a layer. precision: of the four or five matrices; None: what models are trained in."""
    sizes = matrices(training)
    ahead = [matmul_seconds(*size, chip, precision=precision) for size in sizes]
    gradients = sum(_gradient_seconds(*size, chip, precision) for size in sizes)
    attention, attention_back = _attention(training, chip)
    between, between_back = (moved_seconds(nbytes, chip) for nbytes in _between(training, precision))
    forward = Pass(sum(ahead), attention, between)
    again = {
        "none": 0.0,
        "selective": attention if training.attention == "stored" else 0.0,
        "full": forward.seconds,
    }
    return LayerTime(
        forward=forward,
        backward=Pass(gradients, attention_back, between_back),
        recomputed=again[training.recomputation],
        entering=(ahead[0], ahead[2]),
        leaving=(ahead[1], ahead[3]),
    )


def matrices(training: Training) -> list[tuple[int, int, int]]:
    """[tokens, inputs] times [inputs, outputs] on one rank: queries, keys, values; output; up (and gate); down."""
    spec, tp, tokens = training.spec, training.layout.tp, training.tokens
    keys = training.layout.kv_heads(spec) * spec.head_size
    width, hidden, readers = spec.hidden_size // tp, spec.ffn // tp, 1 if spec.style == "gpt2" else 2
    return [
        (tokens, spec.hidden_size, width + 2 * keys),
        (tokens, width, spec.hidden_size),
        (tokens, spec.hidden_size, readers * hidden),
        (tokens, hidden, spec.hidden_size),
    ]


def head_seconds(training: Training, chip: Chip) -> tuple[float, float]:
    """Forward and backward of the last norm, the head and the loss."""
    spec, tokens, element = training.spec, training.tokens, training.recipe.element
    words = ceil(spec.vocab_size / training.layout.tp)
    ahead = matmul_seconds(tokens, spec.hidden_size, words, chip)
    back = matmul_seconds(tokens, words, spec.hidden_size, chip)
    back += matmul_seconds(spec.hidden_size, tokens, words, chip, written=2 * FP32)
    # The loss reads the logits, writes and reads them in fp32; its backward reads those and writes gradients.
    loss = moved_seconds(tokens * words * (element + 2 * FP32), chip)
    return ahead + loss, back + moved_seconds(tokens * words * (FP32 + element), chip)


def embedding_seconds(training: Training, chip: Chip) -> tuple[float, float]:
    """Looking up reads and writes every number once; backward reads it, and adds it to a gradient in fp32."""
    numbers, element = training.tokens * training.spec.hidden_size, training.recipe.element
    return moved_seconds(2 * element * numbers, chip), moved_seconds((element + 2 * FP32) * numbers, chip)


def _gradient_seconds(m: int, k: int, n: int, chip: Chip, precision: str | None) -> float:
    """The gradients of a matrix's input and of the matrix itself, added to those of earlier microbatches.

    The sum is read and written in fp32 by the product itself, eight bytes a number; a kernel of its own that adds in 16
    bits (the product writes one number, the kernel reads two and writes one) moves as many.
    """
    of_input = matmul_seconds(m, n, k, chip, precision=precision)
    return of_input + matmul_seconds(k, m, n, chip, precision=precision, written=2 * FP32)


def _attention(training: Training, chip: Chip) -> tuple[float, float]:
    """Forward and backward of queries by keys, softmax, dropout, scores by values."""
    spec, layout, sequence = training.spec, training.layout, training.tokens_per_sequence
    if training.attention == "flash":
        pairs = training.microbatch * sequence * (sequence + 1) / 2 / layout.cp
        forward = flash_seconds(pairs, spec.hidden_size / layout.tp, chip)
        return forward, FLASH_BACKWARD * forward
    heads, rows, size = training.microbatch * spec.num_heads // layout.tp, sequence // layout.cp, spec.head_size
    products = matmul_seconds(rows, size, sequence, chip, count=heads)
    products += matmul_seconds(rows, sequence, size, chip, count=heads)
    scores, element = heads * rows * sequence, training.recipe.element
    dropped = training.dropout * (2 * element + MASK)
    return (
        products + moved_seconds(scores * (2 * element + dropped), chip),
        2 * products + moved_seconds(scores * (3 * element + dropped), chip),
    )


def _between(training: Training, precision: str | None) -> tuple[float, float]:
    """Bytes read and written between the matrices, in forward and in backward."""
    spec, layout, element = training.spec, training.layout, training.recipe.element
    shared = layout.tp if layout.sequence_parallel else 1
    tokens = training.tokens / shared  # where a rank holds the sequence whole, or its part of it
    hidden = training.tokens * spec.ffn / layout.tp
    ahead, back = ACTIVATION[spec.style]
    dropped = 2 * training.dropout * tokens * spec.hidden_size
    forward = element * (BETWEEN_FORWARD * tokens * spec.hidden_size + ahead * hidden) + MASK * dropped
    backward = element * (BETWEEN_BACKWARD * tokens * spec.hidden_size + back * hidden) + (MASK + 2 * element) * dropped
    if spec.style == "llama":  # queries and keys are turned: read and written
        turned = 2 * element * training.tokens * (spec.hidden_size / layout.tp + layout.kv_heads(spec) * spec.head_size)
        forward, backward = forward + turned, backward + turned
    if precision == "fp8":  # what matrices read is cast, and turned round for backward: reads two bytes, writes two
        cast = 4 * sum(m * k for m, k, _ in matrices(training))
        forward, backward = forward + cast, backward + 4 * sum(m * n for m, _, n in matrices(training))
    return forward, backward
