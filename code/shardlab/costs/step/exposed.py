"""How long a rank waits for the messages of tensor and context parallelism.

`collectives` says how long a message takes; `Program` decides how much of it is
hidden behind arithmetic that runs at the same time.
"""


from shardlab.arguments import checked

from .. import collectives, context_parallel
from ..facts.hardware import Link
from ..facts.network import NETWORK
from ..training import Training
from .layer_time import LayerTime


def _activation_bytes(training: Training) -> float:
    """Count the bytes of one microbatch's activations between two matrices, whole."""
    return training.tokens * training.spec.hidden_size * training.recipe.element


@checked
def half_seconds(training: Training, link: Link) -> float:
    """Time an all-gather, or a reduce-scatter, of one microbatch's activations over tp."""
    nbytes = _activation_bytes(training)
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


@checked
def all_reduce_seconds(training: Training, link: Link) -> float:
    """Time an all-reduce of one microbatch's activations over tp."""
    nbytes = _activation_bytes(training)
    return collectives.all_reduce_seconds(nbytes, training.layout.tp, link)


@checked
def logits_seconds(training: Training, link: Link) -> float:
    """Time the gathering of all words' logits, which a "whole" loss needs on every rank of tp."""
    if training.layout.tp == 1 or training.program.loss != "whole":
        return 0.0
    nbytes = training.recipe.element * training.tokens * training.spec.vocab_size
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


@checked
def tensor_seconds(training: Training, link: Link, time: LayerTime) -> float:
    """Time one layer's waiting for the other ranks of tp, in forward and backward.

    Attention gathers slices of sequences and scatters its sums, and so does the feed-forward block.
    Whole experts need neither; what is left are shared experts, if any. Full recomputation runs
    forward, and waits for its messages, a second time.
    """
    if training.layout.tp == 1:
        return 0.0
    spec = training.spec
    blocks = 1 + (not spec.experts or training.layout.expert_tp > 1 or spec.experts.num_shared > 0)
    entering, leaving = time.entering[:blocks], time.leaving[:blocks]
    half = half_seconds(training, link)
    # Chunks are copied straight into the other GPU's memory, which a network does not allow.
    chunked = training.program.tensor_overlap == "chunks" and link.kind != NETWORK
    if not training.layout.sequence_parallel:
        whole = all_reduce_seconds(training, link)
        forward = 2 * whole
        backward = 2 * whole
        if training.program.tensor_overlap != "none":
            backward -= sum(min(whole, product) for product in entering)
    elif chunked:
        tp = training.layout.tp
        forward = sum(_chunked(half, product, tp) for product in (*entering, *leaving))
        backward = forward
        if not training.program.keeps_gathered:
            backward += sum(_chunked(half, product, tp) for product in entering)
    else:
        # Forward gathers at each entrance and scatters at each exit. Backward scatters at the
        # entrances, gathers at the exits, and gathers each entrance's input again if it was not
        # kept.
        forward = 2 * blocks * half
        backward = (2 if training.program.keeps_gathered else 3) * blocks * half
        if training.program.tensor_overlap != "none":
            messages = 1 if training.program.keeps_gathered else 2
            backward -= sum(messages * min(half, product) for product in entering)
    return forward * (2 if training.recomputation == "full" else 1) + backward


def _chunked(message: float, product: float, chunks: int) -> float:
    """Time the exposed part of a message that travels in chunks beside a product.

    The first chunk is always exposed; so is whatever takes longer than the product.
    """
    return max(message / chunks, message - product)


@checked
def context_seconds(training: Training, link: Link, time: LayerTime) -> float:
    """Time one layer's waiting for keys and values of the other ranks of cp."""
    if training.layout.cp == 1:
        return 0.0
    return context_parallel.exposed_seconds(
        context_parallel.of(training),
        training.program.context_way,
        link,
        forward=time.forward.attention,
        backward=time.backward.attention,
        again=training.recomputation == "full",
    )
