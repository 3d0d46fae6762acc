"""The messages of one step that a rank waits for: of tensor, context and data parallelism, and of ZeRO.

What a message takes is `collectives`; what of it is hidden behind what is computed at the same time is the `engines`'.
"""

from typing import NamedTuple

from shardlab.layout import Layout

from .. import collectives
from ..facts.hardware import Link
from ..facts.network import NETWORK
from ..facts.recipes import Recipe
from ..training import Training
from .engines import Engine
from .layer_time import LayerTime


class Holdings(NamedTuple):
    """Parameters on a rank."""

    layer: int  # of one layer
    layers: int
    rest: int  # before and behind the layers

    @property
    def parameters(self) -> int:
        return self.layer * self.layers + self.rest


class DataMessages(NamedTuple):
    """Seconds of the messages of data parallelism and ZeRO, hidden or not."""

    gradients: float  # of all layers, once in a step
    parameters: float  # likewise
    scatter: float  # of a layer's gradients, for every microbatch
    gather: float  # of a layer's parameters, in every forward and every backward
    rest: float  # of what stands before and behind the layers, for every microbatch


SILENT = DataMessages(0.0, 0.0, 0.0, 0.0, 0.0)


class DataWait(NamedTuple):
    """Seconds that data parallelism and ZeRO make a rank wait."""

    layer: float  # in every layer of every microbatch
    rest: float  # in every microbatch, for what stands before or after the layers
    end: float  # once, after the last microbatch and before the first


def half_seconds(training: Training, link: Link) -> float:
    """Of an all-gather, or a reduce-scatter, of the activations of a microbatch among the ranks of tp."""
    nbytes = training.tokens * training.spec.hidden_size * training.recipe.element
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


def tensor_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
    """One layer's waiting for its peers of tp, forward and backward, and again where forward is computed again."""
    if training.layout.tp == 1:
        return 0.0
    half = half_seconds(training, link)
    chunks = engine.tensor_overlap == "chunks" and link.kind != NETWORK  # copies into the other GPU's memory
    if not training.layout.sequence_parallel:
        whole = all_reduce_seconds(training, link)
        forward, backward = 2 * whole, 2 * whole
        if engine.tensor_overlap != "none":
            backward -= sum(min(whole, product) for product in time.entering)
    elif chunks:
        ways = [_chunked(half, product, training.layout.tp) for product in (*time.entering, *time.leaving)]
        forward = sum(ways)
        backward = forward + sum(_chunked(half, product, training.layout.tp) for product in time.entering)
    else:  # gathered at each entrance, scattered at each exit; backward the other way round, and gathered again
        forward, backward = 4 * half, 6 * half
        if engine.tensor_overlap != "none":
            backward -= sum(2 * min(half, product) for product in time.entering)
    return forward * (2 if training.recomputation == "full" else 1) + backward


def all_reduce_seconds(training: Training, link: Link) -> float:
    """Of the activations of a microbatch among the ranks of tp."""
    nbytes = training.tokens * training.spec.hidden_size * training.recipe.element
    return collectives.all_reduce_seconds(nbytes, training.layout.tp, link)


def _chunked(message: float, product: float, chunks: int) -> float:
    """A message in chunks beside a product in chunks: the first one, or what is longer than the product."""
    return max(message / chunks, message - product)


def context_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
    """One layer's waiting for keys and values of the other ranks of cp, and in backward for their gradients too."""
    layout, spec = training.layout, training.spec
    if layout.cp == 1:
        return 0.0
    width = 2 * layout.kv_heads(spec) * spec.head_size
    nbytes = training.microbatch * training.tokens_per_sequence * width * training.recipe.element
    forward = collectives.all_gather(nbytes, layout.cp).seconds(link)
    passes = [(forward, time.forward.attention), (2 * forward, time.backward.attention)]
    if training.recomputation == "full":
        passes.append((forward, time.forward.attention))
    if not engine.context_overlap:
        return sum(message for message, _ in passes)
    return sum(max(message / layout.cp, message - attention) for message, attention in passes)


def data_messages(layout: Layout, recipe: Recipe, link: Link, held: Holdings) -> DataMessages:
    """Seconds of what data parallelism and ZeRO say, for a rank that holds so many parameters."""
    if layout.replicas == 1:
        return SILENT

    def seconds(bytes_each: float, parameters: float) -> float:  # a reduce-scatter takes as long as an all-gather
        return collectives.all_gather(bytes_each * parameters, layout.replicas).seconds(link)

    gradients = seconds(recipe.gradients, held.parameters)
    if layout.zero == 0:
        gradients = collectives.all_reduce_seconds(recipe.gradients * held.parameters, layout.replicas, link)
    return DataMessages(
        gradients=gradients if layout.zero in (0, 1) else 0.0,
        parameters=seconds(recipe.parameters, held.parameters) if layout.zero in (1, 2) else 0.0,
        scatter=seconds(recipe.gradients, held.layer) if layout.zero in (2, 3) else 0.0,
        gather=seconds(recipe.parameters, held.layer) if layout.zero == 3 else 0.0,  # noqa: PLR2004
        rest=(layout.zero in (2, 3)) * seconds(recipe.gradients, held.rest)
        + (layout.zero == 3) * seconds(recipe.parameters, held.rest),  # noqa: PLR2004
    )


def data_wait(messages: DataMessages, engine: Engine, layers: int, forward: float, backward: float) -> DataWait:
    """What of them a rank waits for, that has so many layers and computes so long on one of them.

    ZeRO-2 scatters the gradients of every microbatch, for it has no room to add them up; ZeRO-3 also gathers every
    layer, twice. The rest, before and behind the layers, has nothing to hide behind.
    """
    gradients, parameters, scatter, gather, rest = messages
    if not engine.data_overlap:
        return DataWait(scatter + 2 * gather, rest, gradients + parameters)
    layer = max(0.0, gather - forward) + max(0.0, gather + scatter - backward)
    hidden = (layers - 1) / layers  # of the first and of the last layer there is nothing to compute beside its message
    end = max(gradients / layers, gradients - layers * backward * hidden)
    end += max(parameters / layers, parameters - layers * forward * hidden)
    return DataWait(layer, rest, end)
