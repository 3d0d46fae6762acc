"""A trace laid out on a cluster: what each rank does in order, and which hops each transfer uses.

A message takes the path between two GPUs. A collective of torch is one transfer: all ranks pass on
their part in step, so it takes its algorithm's steps and bytes (those of `collectives`), and shares
each hop with whatever else crosses it. The algorithms are those of NCCL: rings for all-reduce,
all-gather and reduce-scatter, a pipelined chain for broadcast and reduce, all messages at once for
an all-to-all; where asked for and possible, a switch that adds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2

from shardlab.files.arguments import checked
from shardlab.trace import Event

from ..collectives import (
    Cost,
    all_gather,
    all_to_all,
    reduce_scatter,
    ring_all_reduce,
    switch_share,
)
from ..facts.hops import Hop
from ..facts.network import Cluster
from ..program import COLLECTIVES
from . import matching, traffic
from .traffic import Load

COMPUTE, ISSUE, WAIT = range(3)
# (ISSUE or WAIT, transfer, position of the event), or (COMPUTE, 0, position of the event)
Instruction = tuple[int, int, int]
Uses = tuple[tuple[int, float], ...]  # (hop, bytes through it for each byte that a rank passes on)

# For n ranks: steps, and bytes that each rank passes on as a share of the payload.
_TABLE: dict[str, Callable[[int], tuple[int, float]]] = {
    "all_reduce": lambda n: _of(ring_all_reduce(1.0, n)),
    "all_gather": lambda n: _of(all_gather(1.0, n)),
    "reduce_scatter": lambda n: _of(reduce_scatter(1.0, n)),
    "broadcast": lambda n: (n - 1, float(n > 1)),
    "reduce": lambda n: (n - 1, float(n > 1)),
    "all_to_all": lambda n: _of(all_to_all(1.0, n)),
    "gather": lambda n: (min(n - 1, 1), 1 / n),
    "scatter": lambda n: (min(n - 1, 1), 1 / n),
    # Dissemination: Hensgen et al. 1988, doi:10.1007/BF01379320.
    "barrier": lambda n: (ceil(log2(n)), 0.0),
}


def _of(cost: Cost) -> tuple[int, float]:
    return cost.steps, cost.sent


@dataclass(frozen=True, kw_only=True)
@checked
class Transfer:
    """A message or a collective, ready to be sent."""

    events: tuple[int, ...]  # positions in the trace
    # ("message", its two ranks) or ("collective", its group): one transfer after another.
    channel: tuple[str, tuple[int, ...]]
    latency: float  # seconds until bytes move
    nbytes: float  # that each rank passes on
    uses: Uses


@dataclass(frozen=True)
@checked
class TransferPlan:
    """Everything that is to be played."""

    programs: dict[int, list[Instruction]]  # of each rank, in order
    transfers: list[Transfer]
    hops: list[Hop]


@checked
def lay_out(
    events: Sequence[Event], cluster: Cluster, placement: Sequence[int] | None, algorithm: str
) -> TransferPlan:
    """Lay out the trace; rank r runs on GPU placement[r], or on GPU r without a placement.

    Errors: ValueError for a trace that does not match, ranks without a GPU of their own, or an
    unknown algorithm.
    """
    gpus = place(events, cluster, placement)
    if algorithm not in COLLECTIVES:
        raise ValueError(
            f"no all-reduce is called {algorithm!r}; use one of {', '.join(COLLECTIVES)}"
        )
    layer = _Layer(cluster, gpus, algorithm)
    transfers = [layer.transfer(events, meeting) for meeting in matching.meetings(events)]
    of = {index: number for number, transfer in enumerate(transfers) for index in transfer.events}
    waited = matching.waits(events)
    programs: dict[int, list[Instruction]] = {rank: [] for rank in gpus}
    for index, event in enumerate(events):
        if event.kind == "communicate":
            programs[event.rank].append((ISSUE, of[index], index))
        elif index in waited:
            programs[event.rank].append((WAIT, of[waited[index]], index))
        else:
            programs[event.rank].append((COMPUTE, 0, index))
    return TransferPlan(programs, transfers, list(layer.hops))


@checked
def place(
    events: Sequence[Event], cluster: Cluster, placement: Sequence[int] | None
) -> dict[int, int]:
    """Map every rank of the trace to its GPU.

    Errors: ValueError where one is missing or taken twice.
    """
    ranks = sorted({event.rank for event in events})
    if placement is None and ranks and ranks[-1] >= cluster.gpus:
        raise ValueError(
            f"the trace has a rank {ranks[-1]}, {cluster.name} only {cluster.gpus} GPUs; "
            "use more nodes"
        )
    if placement is not None and ranks and ranks[-1] >= len(placement):
        raise ValueError(
            f"the placement names {len(placement)} GPUs, the trace has a rank {ranks[-1]}; "
            "name more"
        )
    gpus = {rank: rank if placement is None else placement[rank] for rank in ranks}
    taken: dict[int, int] = {}
    for rank, gpu in gpus.items():
        cluster.node_of(gpu)
        if taken.setdefault(gpu, rank) != rank:
            raise ValueError(
                f"ranks {taken[gpu]} and {rank} are both placed on GPU {gpu}; each needs its own"
            )
    return gpus


class _Layer:
    """Turns meetings into transfers; equal meetings share what was computed once."""

    def __init__(self, cluster: Cluster, gpus: dict[int, int], algorithm: str) -> None:
        self.cluster = cluster
        self.gpus = gpus
        self.algorithm = algorithm
        self.hops: dict[Hop, int] = {}
        self._known: dict[tuple[str, int, tuple[int, ...]], tuple[float, float, Uses]] = {}

    def transfer(self, events: Sequence[Event], meeting: matching.Meeting) -> Transfer:
        """Compute the path, the steps and the bytes of a meeting."""
        ranks = tuple([events[index].rank for index in meeting.events])
        pieces = [events[index].pieces for index in meeting.events]
        if any(pieces):
            return self._uneven(meeting, ranks, [row or () for row in pieces])
        center = ranks[0]
        if meeting.op in ("gather", "scatter"):
            # The root's payload is the largest.
            root = max(meeting.events, key=lambda index: events[index].nbytes)
            center = events[root].rank
        key = meeting.op, center, ranks
        if key not in self._known:
            self._known[key] = self._work_out(meeting.op, ranks, center)
        latency, share, uses = self._known[key]
        channel = "message" if meeting.op == "message" else "collective", ranks
        return Transfer(
            events=meeting.events,
            channel=channel,
            latency=latency,
            nbytes=share * meeting.nbytes,
            uses=uses,
        )

    def _uneven(
        self, meeting: matching.Meeting, ranks: tuple[int, ...], pieces: list[tuple[int, ...]]
    ) -> Transfer:
        """Lay out an all-to-all with another size for each pair."""
        load = traffic.uneven_pairs(self.cluster, [self.gpus[rank] for rank in ranks], pieces)
        steps, _ = _TABLE[meeting.op](len(ranks))
        return Transfer(
            events=meeting.events,
            channel=("collective", ranks),
            latency=steps * load.latency,
            nbytes=max(map(sum, pieces)),
            uses=self._uses(load),
        )

    def _work_out(self, op: str, ranks: tuple[int, ...], center: int) -> tuple[float, float, Uses]:
        """Return the latency, bytes passed on for each byte of payload, and the load on hops."""
        gpus = [self.gpus[rank] for rank in ranks]
        count = len(ranks)
        added = None
        if op == "all_reduce" and self.algorithm == "switch":
            added = traffic.switch(self.cluster, gpus)
        if op == "message":
            load = traffic.message(self.cluster, *gpus)
            return load.latency, 1.0, self._uses(load)
        if added is not None and count > 1:
            return added.latency, switch_share(count), self._uses(added)
        if op not in _TABLE:
            raise ValueError(f"unknown operation {op!r}; use send, receive, {', '.join(_TABLE)}")
        steps, share = _TABLE[op](count)
        load = self._load(op, gpus, self.gpus[center])
        return steps * load.latency, share, self._uses(load)

    def _load(self, op: str, gpus: list[int], center: int) -> Load:
        if op == "all_to_all":
            return traffic.pairs(self.cluster, gpus)
        if op in ("gather", "scatter"):
            return traffic.star(self.cluster, center, gpus, inward=op == "gather")
        return traffic.rings(self.cluster, gpus)

    def _uses(self, load: Load) -> Uses:
        return tuple(
            (self.hops.setdefault(hop, len(self.hops)), share) for hop, share in load.shares.items()
        )
