"""Seconds that a rank computes for one layer, the embedding and the head, by part.

Every matrix product of `products` is timed for the size that remains on one rank (`kernels`); of
everything `between` them, the numbers read and written are counted. Messages are in `exposed`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from operator import attrgetter, mul
from typing import NamedTuple

from shardlab.files.arguments import checked, unchecked
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

from ..compute import kernels
from ..compute.kernels import flash_seconds
from ..facts.hardware import Chip
from ..memory import activations
from ..training import Training
from . import elementwise
from .elementwise import MASK
from .products import expert_matrices, matrices, repeated_share

matmul_seconds = unchecked(kernels.matmul_seconds)  # called twenty times for one layer
moved_seconds = unchecked(kernels.moved_seconds)

FP32 = 4
# Bytes that eager torch moves beyond the fused loss for each logit, forward and backward. Forward
# casts to fp32 (6 bytes), and log-softmax reads three times and writes once (16); fused: 10.
# Backward fills with zeros (4), reads three times and writes once (16), and casts (6); fused: 6.
# https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/SoftMax.cu
EAGER_LOSS = 22 - 10, 26 - 6
# Backward of a rule over chunks against its forward: twice as many products, and half of them
# again, T K, T V and those of the states, which are not kept (see `memory.recurrent`).
STATES_BACKWARD = 2.5


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
    # Of the matrices of a mixture: forward and backward of its routed and of its shared experts.
    routed: tuple[float, float] = (0.0, 0.0)
    shared: tuple[float, float] = (0.0, 0.0)

    @property
    def backward_seconds(self) -> float:
        """Seconds of backward, recomputation included."""
        return self.backward.seconds + self.recomputed


@checked
def layer(training: Training, chip: Chip) -> LayerTime:
    """Time what a rank computes for one layer.

    A mixture's experts are timed for equally many tokens each. Of a hybrid the times are the mean
    of all layers.
    """
    if training.layer_kinds:
        return _mean(training, chip)
    sizes, precision = matrices(training), training.precision
    products = [matmul_seconds(*size, chip, precision=precision) for size in sizes]
    gradients = [_gradient_seconds(*size, chip, precision) for size in sizes]
    routed = _routed(training, chip)
    mixed = training.spec.experts is not None
    # Of a mixture the last two are those of shared experts, if it has any.
    out = _output(training.spec)
    mixes = not training.spec.blocks_only
    plain = not mixed and activations.dense_width(training.spec) > 0
    last = slice(-2, None) if mixed and activations.dense_width(training.spec) else slice(0)
    shared = sum(products[last]), sum(gradients[last])
    attention, attention_backward = _attention(training, chip)
    eager, eager_backward = elementwise.eager_bytes(training)
    eager += elementwise.forward_bytes(training)
    eager_backward += elementwise.backward_bytes(training)
    rest, rest_backward = moved_seconds(eager, chip), moved_seconds(eager_backward, chip)
    forward = PassTime(sum(products) + routed[0], attention, rest)
    repeated = repeated_share(training)
    recomputed = {
        "none": repeated * forward.matrices + (repeated > 0) * rest,
        "selective": attention if training.attention == "stored" else 0.0,
        "full": forward.seconds,
    }
    return LayerTime(
        forward=forward,
        backward=PassTime(sum(gradients) + routed[1], attention_backward, rest_backward),
        recomputed=recomputed[training.recomputation],
        # Nothing that a mixture multiplies hides messages of tp; narrow layers do not either.
        entering=(mixes * products[0], products[out + 1] if plain else 0.0),
        leaving=(mixes * products[out], products[-1] if plain else 0.0),
        routed=routed,
        shared=shared,
    )


def _mean(training: Training, chip: Chip) -> LayerTime:
    """Time a hybrid's mean layer."""
    kinds = [(share, layer(kind, chip)) for share, kind in training.layer_kinds]

    def mean(of: Callable[[LayerTime], tuple[float, ...]]) -> tuple[float, ...]:
        columns = zip(*(of(time) for _, time in kinds), strict=True)
        shares = [share for share, _ in kinds]
        return tuple(sum(map(mul, shares, column)) for column in columns)

    pairs = {name: mean(attrgetter(name)) for name in ("entering", "leaving", "routed", "shared")}
    return LayerTime(
        forward=PassTime(*mean(lambda time: time.forward)),
        backward=PassTime(*mean(lambda time: time.backward)),
        recomputed=mean(lambda time: (time.recomputed,))[0],
        **pairs,  # type: ignore[arg-type]
    )


def _output(spec: TransformerSpec) -> int:
    """Return the place of attention's output among the products, -1 without attention."""
    if spec.blocks_only:
        return -1
    if spec.states_only:
        return 2 if spec.states_only.narrow else 1
    return 3 if spec.latent else 1


@checked
def head_seconds(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of the last norm, the head and the loss."""
    tokens = training.tokens
    element = training.recipe.element
    words = ceil(training.spec.vocab_size / training.layout.tp)
    forward, backward = _head_products(training, chip)
    # The loss reads the logits, and writes and reads them in fp32; its backward reads those and
    # writes gradients.
    eager, eager_backward = EAGER_LOSS if "loss" in training.program.unfused else (0, 0)
    words = training.spec.vocab_size if training.program.loss == "whole" else words
    loss = moved_seconds(tokens * words * (element + 2 * FP32 + eager), chip)
    loss_backward = moved_seconds(tokens * words * (FP32 + element + eager_backward), chip)
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


@checked
def kernel_seconds(training: Training, chip: Chip) -> dict[str, float]:
    """Time the kernels of forward and backward on one GPU, as a profiler sorts them.

    Keys: "products", "attention", "others"; without messages, and without the update.
    """
    one = layer(training, chip)
    again = 1 + (training.recomputation == "full")
    each = [again * ahead + back for ahead, back in zip(one.forward, one.backward, strict=True)]
    products, attention, between = (training.spec.num_layers * seconds for seconds in each)
    head = sum(_head_products(training, chip))
    ends = sum(head_seconds(training, chip)) + sum(embedding_seconds(training, chip))
    return {
        "products": products + head,
        "attention": attention,
        "others": between + ends - head,
    }


def _head_products(training: Training, chip: Chip) -> tuple[float, float]:
    tokens, hidden = training.tokens, training.spec.hidden_size
    words = ceil(training.spec.vocab_size / training.layout.tp)
    of_input = matmul_seconds(tokens, words, hidden, chip)
    of_words = matmul_seconds(hidden, tokens, words, chip, written=2 * FP32)
    return matmul_seconds(tokens, hidden, words, chip), of_input + of_words


def _routed(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of a rank's routed experts, which all multiply at once."""
    if training.spec.experts is None:
        return 0.0, 0.0
    held, sizes = expert_matrices(training)
    precision = training.precision
    forward = sum(matmul_seconds(*size, chip, precision=precision, count=held) for size in sizes)
    return forward, sum(_gradient_seconds(*size, chip, precision, held) for size in sizes)


def _gradient_seconds(
    m: int, k: int, n: int, chip: Chip, precision: str | None, count: int = 1
) -> float:
    """Time the gradients of a matrix's input and of the matrix, summed over microbatches.

    The product itself reads and writes the sum in fp32, eight bytes for each number. A separate
    kernel that adds in 16 bits moves as many bytes: the product writes one number, the kernel reads
    two and writes one.
    """
    of_input = matmul_seconds(m, n, k, chip, precision=precision, count=count)
    return of_input + matmul_seconds(
        k, m, n, chip, precision=precision, count=count, written=2 * FP32
    )


def _attention(training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of attention, from queries by keys to scores by values."""
    spec = training.spec
    layout = training.layout
    sequence = training.tokens_per_sequence
    if spec.blocks_only:
        return 0.0, 0.0
    if spec.states_only:
        return _states(spec.states_only, training, chip)
    if training.attention == "flash":
        pairs = training.microbatch * sequence * (sequence + 1) / 2 / layout.cp
        return flash_seconds(
            pairs,
            training.microbatch * sequence / layout.cp,
            chip,
            heads=spec.num_heads / layout.tp,
            head_size=spec.head_size,
            kernels=training.program.kernels,
        )
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


def _states(recurrent: Recurrent, training: Training, chip: Chip) -> tuple[float, float]:
    """Time forward and backward of a rule over chunks, as products of many small matrices.

    No published time of a whole model confirms it.
    """
    chunks = ceil(training.tokens / recurrent.chunk)
    forward = 0.0
    for heads, products in (
        (recurrent.num_heads, recurrent.products()),
        (recurrent.key_heads, recurrent.shared()),
    ):
        count = heads // training.layout.tp * chunks
        forward += sum(matmul_seconds(*size, chip, count=count) for size in products)
    return forward, STATES_BACKWARD * forward
