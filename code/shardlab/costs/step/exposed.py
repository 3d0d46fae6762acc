"""How long a rank waits for the messages of tensor, context and data parallelism, and of ZeRO.

`collectives` says how long a message takes; the program (`engines`) decides how much of it is
hidden behind arithmetic that runs at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardlab.arguments import Count, checked
from shardlab.layout import Layout

from .. import collectives, context_parallel
from ..facts.hardware import LINK_UTILISATION, Link
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
    experts: int = 0  # routed experts among the parameters of one layer

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

    def __add__(self, other: "DataMessages") -> "DataMessages":
        """Add up two kinds of messages that share their network cards."""
        sums = {name: own + getattr(other, name) for name, own in vars(self).items()}
        return DataMessages(**sums)


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
def logits_seconds(training: Training, link: Link) -> float:
    """Time the gathering of all words' logits, which a "whole" loss needs on every rank of tp."""
    if training.layout.tp == 1 or training.loss != "whole":
        return 0.0
    nbytes = training.recipe.element * training.tokens * training.spec.vocab_size
    return collectives.all_gather(nbytes, training.layout.tp).seconds(link)


@checked
def tensor_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
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
    chunked = engine.tensor_overlap == "chunks" and link.kind != NETWORK
    if not training.layout.sequence_parallel:
        whole = all_reduce_seconds(training, link)
        forward = 2 * whole
        backward = 2 * whole
        if engine.tensor_overlap != "none":
            backward -= sum(min(whole, product) for product in entering)
    elif chunked:
        tp = training.layout.tp
        forward = sum(_chunked(half, product, tp) for product in (*entering, *leaving))
        backward = forward
        if not training.keeps_gathered:
            backward += sum(_chunked(half, product, tp) for product in entering)
    else:
        # Forward gathers at each entrance and scatters at each exit. Backward scatters at the
        # entrances, gathers at the exits, and gathers each entrance's input again if it was not
        # kept.
        forward = 2 * blocks * half
        backward = (2 if training.keeps_gathered else 3) * blocks * half
        if engine.tensor_overlap != "none":
            messages = 1 if training.keeps_gathered else 2
            backward -= sum(messages * min(half, product) for product in entering)
    return forward * (2 if training.recomputation == "full" else 1) + backward


def _chunked(message: float, product: float, chunks: int) -> float:
    """Time the exposed part of a message that travels in chunks beside a product.

    The first chunk is always exposed; so is whatever takes longer than the product.
    """
    return max(message / chunks, message - product)


@checked
def context_seconds(training: Training, engine: Engine, link: Link, time: LayerTime) -> float:
    """Time one layer's waiting for keys and values of the other ranks of cp."""
    if training.layout.cp == 1:
        return 0.0
    return context_parallel.exposed_seconds(
        context_parallel.of(training),
        engine.context_way,
        link,
        forward=time.forward.attention,
        backward=time.backward.attention,
        again=training.recomputation == "full",
    )


@checked
def messages_of_replicas(
    training: Training, engine: Engine, links: Mapping[str, Link], held: Holdings
) -> DataMessages:
    """Time every message of data parallelism and ZeRO for a training.

    Routed experts travel by themselves where ranks of ep hold different ones: only dp / ep ranks
    (times cp) hold the same. Errors: ValueError for links that lack an axis.
    """
    needed = {"replicas"} | ({"expert replicas"} if training.layout.ep > 1 else set())
    if missing := needed - links.keys():
        raise ValueError(
            f"links have no {' and '.join(sorted(missing))}; use those of `axes.links`"
        )
    layout = training.layout
    late = training.averages_late
    how = training.recipe, engine
    if layout.ep == 1:
        return data_messages(layout, *how, links["replicas"], held, late=late)
    rest = held._replace(layer=held.layer - held.experts, experts=0)
    routed = Holdings(layer=held.experts, layers=held.layers, rest=0)
    few = replace(layout, dp=layout.dp // layout.ep, ep=1)
    return data_messages(layout, *how, links["replicas"], rest, late=late) + data_messages(
        few, *how, links["expert replicas"], routed, late=late
    )


@checked
def data_messages(
    layout: Layout,
    recipe: Recipe,
    engine: Engine,
    link: Link,
    held: Holdings,
    *,
    late: bool = False,
) -> DataMessages:
    """Time every message of data parallelism and ZeRO, for a rank that holds `held`.

    link: among the replicas, at LINK_UTILISATION of its rate. late: whether gradients stay whole
    until the step, see `Training.averages_late`.
    """
    if layout.replicas == 1:
        return DataMessages()
    zero = layout.zero
    if link.kind == NETWORK:
        reached = engine.between_nodes / LINK_UTILISATION
        link = replace(link, bandwidth=reached * link.bandwidth)

    def seconds(bytes_each: float, parameters: float, messages: int = 1) -> float:
        # A reduce-scatter takes as long as an all-gather.
        cost = collectives.all_gather(bytes_each * parameters, layout.replicas)
        return cost.seconds(link) + (messages - 1) * cost.steps * link.latency

    if zero == 0:
        nbytes = recipe.gradients * held.parameters
        average = collectives.all_reduce_seconds(nbytes, layout.replicas, link)
        return DataMessages(gradients=average)
    gradients = parameters = scatter = gather = rest = 0.0
    if zero >= CUT_FROM["gradients"] and not late:
        scatter = seconds(recipe.gradients, held.layer, engine.layer_messages)
        rest = seconds(recipe.gradients, held.rest)
    else:
        gradients = seconds(recipe.gradients, held.parameters)
    if zero >= CUT_FROM["parameters"]:
        gather = seconds(recipe.parameters, held.layer, engine.layer_messages)
        rest += seconds(recipe.parameters, held.rest)
    else:
        parameters = seconds(recipe.parameters, held.parameters)
    return DataMessages(
        gradients=gradients, parameters=parameters, scatter=scatter, gather=gather, rest=rest
    )


@checked
def data_wait(
    messages: DataMessages,
    engine: Engine,
    layers: Count,
    forward: float,
    backward: float,
    *,
    recomputed: bool = False,
) -> DataWait:
    """Time the part of `messages` that nothing hides.

    layers: how many the rank holds. forward, backward: seconds that one layer computes. ZeRO-2
    scatters the gradients of every microbatch, for it has no room to add them up; ZeRO-3 also
    gathers every layer, twice, and a third time where `recomputed` layers need it. What is outside
    the layers has nothing to hide behind.
    """
    gather = messages.gather
    scatter = messages.scatter
    gradients = messages.gradients
    parameters = messages.parameters
    again = 2 if recomputed and engine.regathers else 1  # gathers in backward
    if not engine.data_overlap:
        return DataWait(scatter + (1 + again) * gather, messages.rest, gradients + parameters)
    layer = max(0.0, gather - forward) + max(0.0, again * gather + scatter - backward)
    # The last layer of backward, and the first of forward, have nothing to compute beside
    # their messages.
    hidden = (layers - 1) / layers
    end = max(gradients / layers, gradients - layers * backward * hidden)
    end += max(parameters / layers, parameters - layers * forward * hidden)
    return DataWait(layer, messages.rest, end)
