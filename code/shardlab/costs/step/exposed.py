"""How long a rank waits for the messages of tensor and context parallelism.

`collectives` says how long a message takes; `Program` decides how much of it is
hidden behind arithmetic that runs at the same time.
"""

from typing import NamedTuple

from shardlab.files.arguments import checked

from .. import collectives, context_parallel
from ..facts.hardware import ReachedLink
from ..facts.network import NETWORK
from ..training import Training
from .layer_time import LayerTime


@checked
def activation_bytes(training: Training) -> float:
    """Count the bytes of one microbatch's activations between two matrices, whole."""
    return training.tokens * training.spec.hidden_size * training.recipe.element


@checked
def gather_seconds(training: Training, link: ReachedLink) -> float:
    """Time an all-gather, or a reduce-scatter, of one microbatch's activations over tp."""
    nbytes = activation_bytes(training)
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


@checked
def all_reduce_seconds(training: Training, link: ReachedLink) -> float:
    """Time an all-reduce of one microbatch's activations over tp."""
    nbytes = activation_bytes(training)
    how = training.program.collectives
    return collectives.all_reduce_seconds(nbytes, training.layout.tp, link, collectives=how)


@checked
def logits_seconds(training: Training, link: ReachedLink) -> float:
    """Time the gathering of all words' logits, which a "whole" loss needs on every rank of tp."""
    if training.layout.tp == 1 or training.program.loss != "whole":
        return 0.0
    nbytes = training.recipe.element * training.tokens * training.spec.vocab_size
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


class Passes(NamedTuple):
    """Seconds of forward and of backward, recomputation included."""

    forward: float
    backward: float


@checked
def tensor_passes(training: Training, link: ReachedLink, time: LayerTime) -> Passes:
    """Time one layer's waiting for the other ranks of tp, in each pass.

    Full recomputation runs forward, and waits for its messages, a second time.
    """
    if training.layout.tp == 1:
        return Passes(0.0, 0.0)
    # Chunks are copied straight into the other GPU's memory, which a network does not allow.
    chunked = training.program.tensor_overlap == "chunks" and link.kind != NETWORK
    if not training.layout.sequence_parallel:
        waits = _whole(training, link, time)
    elif chunked:
        waits = _in_chunks(training, link, time)
    else:
        waits = _sliced(training, link, time)
    again = training.recomputation == "full"
    return Passes(waits.forward, waits.backward + again * waits.forward)


def _blocks(training: Training) -> int:
    """Count the blocks of a layer that gather and scatter.

    Whole experts need neither; what is left are shared experts, if any.
    """
    experts = training.spec.experts
    if training.spec.halves == 1:
        return 1
    return 1 + (not experts or training.layout.expert_tp > 1 or experts.num_shared > 0)


def _of_blocks(training: Training, pair: tuple[float, float]) -> tuple[float, ...]:
    """Take the products beside which each block's messages travel.

    Where a layer is one half, the mean layer's product is the sum of both kinds' shares.
    """
    return pair[: _blocks(training)] if training.spec.halves > 1 else (sum(pair),)


def _whole(training: Training, link: ReachedLink, time: LayerTime) -> Passes:
    """Two all-reduces in each pass; those of backward may overlap the gradients of weights."""
    each = all_reduce_seconds(training, link)
    sums = training.spec.halves * each
    if training.program.tensor_overlap == "none":
        return Passes(sums, sums)
    entering = _of_blocks(training, time.entering)
    return Passes(sums, sums - sum(min(each, product) for product in entering))


def _sliced(training: Training, link: ReachedLink, time: LayerTime) -> Passes:
    """All-gathers and reduce-scatters of slices.

    Forward gathers at each entrance and scatters at each exit. Backward scatters at the entrances,
    gathers at the exits, and gathers each entrance's input again if it was not kept.
    """
    half = gather_seconds(training, link)
    blocks = _blocks(training)
    again = not training.program.keeps_gathered
    backward = (2 + again) * blocks * half
    if training.program.tensor_overlap != "none":
        products = _of_blocks(training, time.entering)
        backward -= sum((1 + again) * min(half, product) for product in products)
    return Passes(2 * blocks * half, backward)


def _in_chunks(training: Training, link: ReachedLink, time: LayerTime) -> Passes:
    """The same messages, each in chunks beside a product."""
    half = gather_seconds(training, link)
    entering, leaving = (_of_blocks(training, each) for each in (time.entering, time.leaving))
    tp = training.layout.tp
    forward = sum(_chunked(half, product, tp) for product in (*entering, *leaving))
    if training.program.keeps_gathered:
        return Passes(forward, forward)
    return Passes(forward, forward + sum(_chunked(half, product, tp) for product in entering))


def _chunked(message: float, product: float, chunks: int) -> float:
    """Time the exposed part of a message that travels in chunks beside a product.

    The first chunk is always exposed; so is whatever takes longer than the product.
    """
    return max(message / chunks, message - product)


@checked
def context_seconds(training: Training, link: ReachedLink, time: LayerTime) -> float:
    """Time one layer's waiting for keys and values of the other ranks of cp."""
    if training.layout.cp == 1:
        return 0.0
    return context_parallel.exposed_seconds(
        context_parallel.of(training),
        training.program.context_strategy,
        link,
        forward=time.forward.attention,
        backward=time.backward.attention,
        again=training.recomputation == "full",
    )
