"""Times of collectives that others recorded, by size, and how far a formula is from them.

An error is predicted / measured - 1: below 0 the formula promises too short a time. Its median is
taken over the sizes of a class, because a single table may hold a slow run.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from shardlab.files.arguments import Count, Positive, checked

from .. import collectives
from ..collectives import library
from ..facts import nodes
from ..facts.hardware import ReachedLink
from ..traces import traffic
from ..units import MiB
from .rows import rows

# The classes of size, each with the most bytes that belong to it.
SIZES = {
    "up to 8 KiB": MiB / 128,
    "8 to 128 KiB": MiB / 8,
    "128 KiB to 1 MiB": MiB,
    "1 to 16 MiB": 16 * MiB,
    "16 to 256 MiB": 256 * MiB,
    "above 256 MiB": float("inf"),
}
Formula = Callable[["RecordedSeries", float], float]


@dataclass(frozen=True, kw_only=True)
@checked
class RecordedSeries:
    """What one benchmark printed for one operation on some GPUs, at several sizes."""

    node: str  # name in `nodes`
    num_nodes: Count
    gpus: Count  # in each node
    op: str  # see `collectives.BUS_FACTORS`
    # size in bytes -> seconds; the size is the larger of one rank's input and output
    seconds: Mapping[str, Positive] = field(hash=False)
    source: str

    def __post_init__(self) -> None:
        if self.op not in library.NODE_OPERATIONS:
            known = ", ".join(library.NODE_OPERATIONS)
            raise ValueError(f"op={self.op!r} is unknown; known: {known}")
        if not self.seconds or not all(size.isdecimal() and int(size) for size in self.seconds):
            raise ValueError(f"seconds={self.seconds} must have a time for each size in bytes")

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return self.num_nodes * self.gpus

    @property
    def machine(self) -> str:
        """A short name: "8 H100, one node"."""
        count = "one node" if self.num_nodes == 1 else f"{self.num_nodes} nodes"
        return f"{self.ranks} {nodes.node(self.node).chip.name.split()[0]}, {count}"

    @cached_property
    def link(self) -> ReachedLink:
        """The rings through these GPUs, at the rate that collectives are assumed to reach.

        An all-to-all sends to all others at once instead.
        """
        cluster = nodes.cluster(self.node, self.num_nodes)
        first = range(0, cluster.gpus, cluster.node.gpus)
        gpus = [start + gpu for start in first for gpu in range(self.gpus)]
        link = traffic.as_link(cluster, gpus)
        if self.op == "all_to_all":
            load = traffic.pairs(cluster, gpus)
            link = replace(link, bandwidth=load.bandwidth, latency=load.latency)
        return link.reached


@checked
def closed_form(recording: RecordedSeries, nbytes: Positive) -> float:
    """Time a collective of `nbytes` as a step does: alpha and beta, and a switch that adds."""
    ranks, link = recording.ranks, recording.link
    if recording.op == "all_reduce":
        return collectives.all_reduce_seconds(nbytes, ranks, link, collectives="switch")
    cost = collectives.all_to_all if recording.op == "all_to_all" else collectives.all_gather
    return cost(nbytes, ranks).seconds(link)  # a reduce-scatter takes as long as an all-gather


@checked
def repaired(recording: RecordedSeries, nbytes: Positive) -> float:
    """Time a collective of `nbytes` by `library.node_seconds` in a node, else as `closed_form`."""
    if recording.num_nodes > 1:
        return closed_form(recording, nbytes)
    return library.node_seconds(recording.op, nbytes, recording.ranks, recording.link)


@checked
def size_class(nbytes: Positive) -> str:
    """Return the name of the class of `SIZES` to which `nbytes` belong."""
    return next(name for name, most in SIZES.items() if nbytes <= most)


@checked
def errors(recordings: Iterable[RecordedSeries], formula: Formula) -> dict[str, list[float]]:
    """List the errors of a formula, predicted / measured - 1, for each class of size."""
    found: dict[str, list[float]] = {name: [] for name in SIZES}
    for each in recordings:
        for size, measured in each.seconds.items():
            nbytes = float(size)
            found[size_class(nbytes)].append(formula(each, nbytes) / measured - 1)
    return found


@checked
def medians(
    recordings: Iterable[RecordedSeries], formula: Formula = closed_form, *, signed: bool = True
) -> dict[str, float]:
    """Return the median error of each class of size that was recorded; unsigned: of its amount."""
    found = errors(recordings, formula)
    kept = {name: each if signed else list(map(abs, each)) for name, each in found.items()}
    return {name: median(each) for name, each in kept.items() if each}


@checked
def table(
    recordings: Iterable[RecordedSeries], formula: Formula = closed_form
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the median errors for each machine and operation, by class of size."""
    groups: dict[tuple[str, str], list[RecordedSeries]] = {}
    for each in recordings:
        groups.setdefault((each.machine, each.op), []).append(each)
    return {name: medians(group, formula) for name, group in groups.items()}


PUBLISHED = rows("recordings", RecordedSeries)
ONE_NODE = tuple(each for each in PUBLISHED if each.num_nodes == 1)
