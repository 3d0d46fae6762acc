"""How long a rank waits for the messages of tensor, context and data parallelism, and of ZeRO.

`collectives` says how long a message takes; the program (`engines`) decides how much of it is
hidden behind arithmetic that runs at the same time.
"""

from dataclasses import dataclass
from typing import NamedTuple

from shardlab.arguments import Count, checked
from shardlab.layout import Layout

from .. import collectives
from ..facts.hardware import Link
from ..facts.network import NETWORK
from ..facts.recipes import Recipe
from ..memory import CUT_FROM
from ..training import Training
from .engines import Engine
from .layer_time import LayerTime


class Holdings(NamedTuple):
    """How many parameters one rank holds."""

    layer: int  # parameters of one layer
    layers: Count  # number of layers
    rest: int  # parameters outside the layers: embedding, last norm, head

    @property
    def parameters(self) -> int:
        """All parameters on the rank."""
        return self.layer * self.layers + self.rest


@dataclass(frozen=True, kw_only=True)
@checked
class DataMessages:
    """Seconds that the messages of data parallelism and ZeRO take, hidden or not."""

    gradients: float = 0.0  # all layers, once in a step
    parameters: float = 0.0  # all layers, once in a step
    scatter: float = 0.0  # one layer's gradients, for every microbatch
    gather: float = 0.0  # one layer's parameters, in every forward and every backward
    rest: float = 0.0  # what is outside the layers, for every microbatch


class DataWait(NamedTuple):
    """Seconds that data parallelism and ZeRO make a rank wait."""

    layer: float  # in every layer of every microbatch
    rest: float  # in every microbatch, for what is outside the layers
    end: float  # once, after the last microbatch and before the first


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
def tensor_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
    """Time one layer's waiting for the other ranks of tp, in forward and backward.

    Full recomputation runs forward, and waits for its messages, a second time.
    """
    if training.layout.tp == 1:
        return 0.0
    half = half_seconds(training, link)
    # Chunks are copied straight into the other GPU's memory, which a network does not allow.
    chunked = engine.tensor_overlap == "chunks" and link.kind != NETWORK
    if not training.layout.sequence_parallel:
        whole = all_reduce_seconds(training, link)
        forward = 2 * whole
        backward = 2 * whole
        if engine.tensor_overlap != "none":
            backward -= sum(min(whole, product) for product in time.entering)
    elif chunked:
        tp = training.layout.tp
        products = (*time.entering, *time.leaving)
        forward = sum(_chunked(half, product, tp) for product in products)
        backward = forward + sum(_chunked(half, product, tp) for product in time.entering)
    else:
        # Forward gathers at each entrance and scatters at each exit. Backward scatters at the
        # entrances, gathers at the exits, and gathers each entrance's input again.
        forward = 4 * half
        backward = 6 * half
        if engine.tensor_overlap != "none":
            backward -= sum(2 * min(half, product) for product in time.entering)
    return forward * (2 if training.recomputation == "full" else 1) + backward


def _chunked(message: float, product: float, chunks: int) -> float:
    """Time the exposed part of a message that travels in chunks beside a product.

    The first chunk is always exposed; so is whatever takes longer than the product.
    """
    return max(message / chunks, message - product)


@checked
def context_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
    """Time one layer's waiting for keys and values of the other ranks of cp.

    Backward moves their gradients as well.
    """
    layout = training.layout
    spec = training.spec
    if layout.cp == 1:
        return 0.0
    width = 2 * layout.kv_heads(spec) * spec.head_size
    tokens = training.microbatch * training.tokens_per_sequence
    nbytes = tokens * width * training.recipe.element
    forward = collectives.all_gather(nbytes, layout.cp).seconds(link)
    passes = [(forward, time.forward.attention), (2 * forward, time.backward.attention)]
    if training.recomputation == "full":
        passes.append((forward, time.forward.attention))
    if not engine.context_overlap:
        return sum(message for message, _ in passes)
    return sum(_chunked(message, attention, layout.cp) for message, attention in passes)


@checked
def data_messages(layout: Layout, recipe: Recipe, link: Link, held: Holdings) -> DataMessages:
    """Time every message of data parallelism and ZeRO, for a rank that holds `held`."""
    if layout.replicas == 1:
        return DataMessages()
    zero = layout.zero

    def seconds(bytes_each: float, parameters: float) -> float:
        # A reduce-scatter takes as long as an all-gather.
        return collectives.all_gather(bytes_each * parameters, layout.replicas).seconds(link)

    if zero == 0:
        nbytes = recipe.gradients * held.parameters
        average = collectives.all_reduce_seconds(nbytes, layout.replicas, link)
        return DataMessages(gradients=average)
    gradients = parameters = scatter = gather = rest = 0.0
    if zero >= CUT_FROM["gradients"]:
        scatter = seconds(recipe.gradients, held.layer)
        rest = seconds(recipe.gradients, held.rest)
    else:
        gradients = seconds(recipe.gradients, held.parameters)
    if zero >= CUT_FROM["parameters"]:
        gather = seconds(recipe.parameters, held.layer)
        rest += seconds(recipe.parameters, held.rest)
    else:
        parameters = seconds(recipe.parameters, held.parameters)
    return DataMessages(
        gradients=gradients, parameters=parameters, scatter=scatter, gather=gather, rest=rest
    )


@checked
def data_wait(
    messages: DataMessages, engine: Engine, layers: Count, forward: float, backward: float
) -> DataWait:
    """Time the part of `messages` that nothing hides.

    layers: how many the rank holds. forward, backward: seconds that one layer computes. ZeRO-2
    scatters the gradients of every microbatch, for it has no room to add them up; ZeRO-3 also
    gathers every layer, twice. What is outside the layers has nothing to hide behind.
    """
    gather = messages.gather
    scatter = messages.scatter
    gradients = messages.gradients
    parameters = messages.parameters
    if not engine.data_overlap:
        return DataWait(scatter + 2 * gather, messages.rest, gradients + parameters)
    layer = max(0.0, gather - forward) + max(0.0, gather + scatter - backward)
    # The last layer of backward, and the first of forward, have nothing to compute beside
    # their messages.
    hidden = (layers - 1) / layers
    end = max(gradients / layers, gradients - layers * backward * hidden)
    end += max(parameters / layers, parameters - layers * forward * hidden)
    return DataWait(layer, messages.rest, end)
