"""How long a rank waits for the ranks that hold the same parameters: data parallelism and ZeRO."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import NamedTuple

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import Layout

from .. import collectives
from ..facts.hardware import LINK_UTILISATION, ReachedLink
from ..facts.network import NETWORK
from ..facts.recipes import Recipe
from ..memory import CUT_FROM
from ..program import Program
from ..training import Training

# Parameters of a full bucket; the tensor that fills a bucket also closes it:
# https://github.com/NVIDIA/NeMo/blob/03ec89696d41c03e2d76150d151a9596e4b6968d/nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py
BUCKET = 128 * 2**20


class Holdings(NamedTuple):
    """How many parameters one rank holds."""

    layer: int  # parameters of one layer
    layers: Count  # number of layers
    rest: int  # parameters outside the layers: embedding, last norm, head
    experts: int = 0  # routed experts among the parameters of one layer
    first: int = 0  # of the rest: the embedding, needed first, its gradient complete last
    buckets: Count = 1  # equal messages in which all gradients, or parameters, travel

    @property
    def parameters(self) -> int:
        """All parameters on the rank."""
        return self.layer * self.layers + self.rest


@dataclass(frozen=True, kw_only=True)
@checked
class DataMessages:
    """Seconds that the messages of data parallelism and ZeRO take, hidden or not."""

    average: float = 0.0  # all gradients, to every rank, once in a step
    cut_average: float = 0.0  # likewise, to each rank its part
    update: float = 0.0  # all parameters, once in a step
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


@checked
def messages_of_replicas(
    training: Training, links: Mapping[str, ReachedLink], held: Holdings
) -> DataMessages:
    """Time every message of data parallelism and ZeRO for a training.

    Routed experts travel by themselves where ranks of ep hold different ones: only dp / ep ranks
    (times cp) hold the same. Gradients stay whole until the step where no stage cuts them before:
    with several chunks, or two stages with tied ends. Errors: ValueError for links that lack an
    axis.
    """
    needed = {"replicas"} | ({"expert replicas"} if training.layout.ep > 1 else set())
    if missing := needed - links.keys():
        raise ValueError(
            f"links have no {' and '.join(sorted(missing))}; use those of `axes.links`"
        )
    layout = training.layout
    late = training.averages_late or all(map(training.keeps_whole, range(layout.pp)))
    how = training.recipe, training.program
    if layout.ep == 1:
        return data_messages(layout, *how, links["replicas"], held, late=late)
    rest = held._replace(layer=held.layer - held.experts, experts=0)
    routed = Holdings(layer=held.experts, layers=held.layers, rest=0, buckets=held.buckets)
    few = replace(layout, dp=layout.dp // layout.ep, ep=1)
    return data_messages(layout, *how, links["replicas"], rest, late=late) + data_messages(
        few, *how, links["expert replicas"], routed, late=late
    )


@checked
def bucket_count(training: Training, parameters: Count, layer: Count) -> int:
    """Count the messages in which all gradients travel: one where the program overlaps none.

    parameters: of a rank, `layer` of them in each layer. A program without `bucket_bytes` has the
    buckets of NeMo: one for each layer, or for as many layers as reach `BUCKET`. Each chunk of a
    stage is one bucket but for the first, which is cut: its gradients are complete last. Sources:
    https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/features/optimizations/communication_overlap.html
    https://github.com/NVIDIA/Megatron-LM/blob/core_r0.9.0/megatron/core/distributed/distributed_data_parallel.py
    """
    how, chunks = training.program, training.chunks
    if how.bucket_bytes:
        return ceil(training.recipe.gradients * parameters / how.bucket_bytes)
    if not how.data_overlap:
        return 1
    return chunks - 1 + ceil(parameters / chunks / max(layer, BUCKET))


@checked
def data_messages(
    layout: Layout,
    recipe: Recipe,
    program: Program,
    link: ReachedLink,
    held: Holdings,
    *,
    late: bool = False,
) -> DataMessages:
    """Time every message of data parallelism and ZeRO, for a rank that holds `held`.

    link: among the replicas. late: whether gradients stay whole until the step, see
    `Training.averages_late`.
    """
    if layout.replicas == 1:
        return DataMessages()
    zero = layout.zero
    if link.kind == NETWORK:
        reached = program.between_nodes / LINK_UTILISATION
        link = replace(link, bandwidth=reached * link.bandwidth)

    def seconds(bytes_each: float, parameters: float, messages: int = 1) -> float:
        # A reduce-scatter takes as long as an all-gather.
        cost = collectives.all_gather(bytes_each * parameters, layout.replicas)
        return cost.seconds(link) + (messages - 1) * cost.steps * link.latency

    if zero == 0:
        nbytes = recipe.gradients * held.parameters
        bucket = collectives.all_reduce_seconds(
            nbytes / held.buckets, layout.replicas, link, collectives=program.collectives
        )
        return DataMessages(average=held.buckets * bucket)
    once = held.layers + 1 if program.layer_by_layer else held.buckets
    cut_average = update = scatter = gather = rest = 0.0
    if zero >= CUT_FROM["gradients"] and not late:
        scatter = seconds(recipe.gradients, held.layer, program.layer_messages)
        rest = seconds(recipe.gradients, held.rest)
    else:
        cut_average = seconds(recipe.gradients, held.parameters, once)
    if zero >= CUT_FROM["parameters"]:
        gather = seconds(recipe.parameters, held.layer, program.layer_messages)
        rest += (1 + program.regathers_ends) * seconds(recipe.parameters, held.rest)
    else:
        update = seconds(recipe.parameters, held.parameters, once)
    return DataMessages(
        cut_average=cut_average, update=update, scatter=scatter, gather=gather, rest=rest
    )


@checked
def data_wait(
    messages: DataMessages,
    program: Program,
    held: Holdings,
    forward: float,
    backward: float,
    *,
    recomputed: bool = False,
) -> DataWait:
    """Time the part of `messages` that nothing hides.

    forward, backward: seconds of one layer that hide messages, see `MicrobatchTime.beside`. ZeRO-2
    scatters the gradients of every microbatch, for it has no room to add them up; ZeRO-3 also
    gathers every layer, twice, and a third time where `recomputed` layers need it. What is outside
    the layers has nothing to hide behind, nor do the first layer of forward and the last of
    backward.

    Known limits, in a `replay` of `program`: with tp on the same links, messages that might travel
    later hold up tp; it took 5 % less to 11 % more on network cards, 2 % less to 4 % more with
    NVLink alone. A ring of cp added 5 % over two nodes, 1 % in one. A pipeline of single GPUs with
    ZeRO-2 or -3 took 1.3 or 1.6 % less.
    """
    gather = messages.gather
    scatter = messages.scatter
    hides = program.data_overlap
    again = 2 if recomputed and program.regathers else 1  # gathers in backward
    layer = scatter + (1 + again) * gather
    rest = messages.rest
    if "layers" in hides:
        layer = max(0.0, gather - forward) + max(0.0, again * gather + scatter - backward)
        layer *= (held.layers - 1) / held.layers
        rest += gather + scatter
    end = 0.0
    for name, seconds, beside in (
        ("average", messages.average, backward),
        ("cut average", messages.cut_average, backward),
        ("update", messages.update, forward),
    ):
        end += _exposed(seconds, held, beside) if seconds and name in hides else seconds
    return DataWait(layer, rest, end)


def _exposed(seconds: float, held: Holdings, beside: float) -> float:
    """Time what nothing hides of equal messages of all gradients that take `seconds` together.

    The head's gradient exists before backward of the layers begins, each of which computes for
    `beside` seconds; the embedding's is complete at its end. One message travels after the other,
    each when its gradients exist. What decides is the first message, the last, or one at the edge
    of head, layers or embedding. Parameters before a forward are the same, in reverse.
    """
    each = seconds / held.buckets
    layers = held.layers * beside
    return max(layers * share + left * each for share, left in _deciding(held)) - layers


@cache
def _deciding(held: Holdings) -> list[tuple[float, int]]:
    """List the messages that may decide: the layers' share before each, and how many are left."""
    size = held.parameters / held.buckets
    before, after = held.rest - held.first, held.parameters - held.first
    edges = {int(edge / size) + more for edge in (before, after) for more in (0, 1)}
    some = [count for count in edges | {1, held.buckets} if 1 <= count <= held.buckets]
    shares = [min(1.0, max(0.0, count * size - before) / (after - before)) for count in some]
    return [(share, held.buckets - count + 1) for share, count in zip(shares, some, strict=True)]
