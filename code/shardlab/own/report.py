"""What a recording says of a step, and beside it what `costs` predicts for the same bytes."""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from shardlab import trace
from shardlab.costs.collectives import library
from shardlab.costs.facts.network import NETWORK, Cluster
from shardlab.costs.step import Step, axes
from shardlab.files.arguments import checked
from shardlab.trace import Event

from .recording import Recording, last_to_come, waited

LONG = 16e6  # bytes: longer messages are bound by the links' rate, shorter ones also by latency
NAMED = 3  # differences
TABLE = Path(__file__).with_name("differences.csv")


class Difference(NamedTuple):
    """Seconds of a step, per rank, that were recorded and not predicted."""

    name: str
    seconds: float
    seen: str
    page: str


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """Calls of one operation in one group with one size, on all recorded ranks."""

    op: str
    group: tuple[int, ...]
    nbytes: int  # 0: not known
    count: int
    kernels: float  # s, of all ranks
    waiting: float  # s of it, of all ranks, before the last one came
    sending: float | None  # s of one call from then on; None where only one rank is recorded
    busbw: float | None  # bytes/s, as nccl-tests counts them
    predicted: float | None  # s of one call that runs alone


@dataclass(frozen=True, kw_only=True)
class RecordedStep:
    """A step in numbers: seconds, bytes and bytes/s."""

    recording: Recording
    kinds: dict[int, dict[str, float]]  # rank -> kind -> seconds
    collectives: list[Collectives]  # the longest kernels first
    late: dict[int, tuple[float, int]]  # rank -> seconds waited for it, calls it came last to
    clocks: str  # why nobody is named as late, or ""
    cluster: Cluster | None
    step: Step | None  # predicted

    @property
    def differences(self) -> list[Difference]:
        """The largest ones first."""
        found = {"waiting": sum(each.waiting for each in self.collectives)}
        for each in self.collectives:
            if each.sending is not None and each.predicted is not None:
                name = "long" if each.nbytes > LONG else "short"
                slower = (each.sending - each.predicted) * each.count * len(each.group)
                found[name] = found.get(name, 0.0) + slower
        found = {name: total / len(self.kinds) for name, total in found.items()}
        mean = {
            kind: fmean(each.get(kind, 0.0) for each in self.kinds.values())
            for kind in ("products", "attention", "other kernels", "exposed", "nothing launched")
        }
        found["idle"] = mean.pop("nothing launched")
        if self.step:
            exposed = mean.pop("exposed") - found["waiting"]
            found["exposed"] = exposed - self.step.seconds * self.step.communication
            found["computing"] = sum(mean.values()) - self.step.computing
        first = max(self.late, key=lambda rank: self.late[rank][0], default="?")
        with open(TABLE, encoding="utf-8") as file:
            rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
        differences = [
            Difference(name, found[name], row["seen"].format(rank=first), row["page"])
            for row in rows
            if found.get(name := row["name"], 0.0) > 0
        ]
        return sorted(differences, key=lambda each: -each.seconds)[:NAMED]

    @property
    def data(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "ranks": self.recording.ranks,
            "world_size": self.recording.world_size,
            "step": self.recording.step,
            "dialect": self.recording.dialect,
            "missing": [*self.recording.missing, *([self.clocks] if self.clocks else [])],
            "unnamed": self.recording.unnamed,
            "kinds": self.kinds,
            "collectives": [vars(each) for each in self.collectives],
            "late": {rank: {"seconds": s, "last": n} for rank, (s, n) in self.late.items()},
            "cluster": self.cluster and self.cluster.name,
            "predicted": self.step and self.step.summary,
            "differences": [each._asdict() for each in self.differences],
        }


@checked
def report(
    recording: Recording, cluster: Cluster | None = None, step: Step | None = None
) -> RecordedStep:
    """Sum a recording up. step: predicted. Errors: ValueError for a cluster with too few GPUs."""
    if cluster and cluster.gpus < recording.world_size:
        raise ValueError(
            f"{recording.world_size} ranks do not fit on {cluster.name} with {cluster.gpus} GPUs; "
            f"use the cluster that they ran on"
        )
    clocks, calls = "", recording.calls
    late: dict[int, tuple[float, int]] = {}
    try:
        lasts = Counter(last_to_come(members).rank for members in calls if len(members) > 1)
        for (_, last), seconds in recording.who_waits().items():
            late[last] = late.get(last, (0.0, 0))[0] + seconds, lasts[last]
    except ValueError as error:
        clocks = str(error)
    alike: dict[tuple[str, tuple[int, ...], int], list[list[Event]]] = {}
    for members in calls:
        nbytes = max(event.nbytes for event in members)
        alike.setdefault((members[0].op, members[0].group, nbytes), []).append(members)
    collectives = [_collectives(*key, same, not clocks, cluster) for key, same in alike.items()]
    return RecordedStep(
        recording=recording,
        kinds={rank: _kinds(recording, rank) for rank in recording.ranks},
        collectives=sorted(collectives, key=lambda each: -each.kernels),
        late=dict(sorted(late.items(), key=lambda each: -each[1][0])),
        clocks=clocks,
        cluster=cluster,
        step=step,
    )


def _collectives(
    op: str,
    group: tuple[int, ...],
    nbytes: int,
    calls: Sequence[Sequence[Event]],
    agree: bool,
    cluster: Cluster | None,
) -> Collectives:
    told = len(calls[0]) > 1 and agree
    sending = fmean(last_to_come(members).seconds for members in calls) if told else None
    bus = trace.ring_bytes(op, nbytes, len(group))
    return Collectives(
        op=op,
        group=group,
        nbytes=nbytes,
        count=len(calls),
        kernels=sum(event.seconds for members in calls for event in members),
        waiting=sum(waited(event, call) for call in calls for event in call) if told else 0.0,
        sending=sending,
        busbw=bus / sending if sending and bus else None,
        predicted=_predicted(op, group, nbytes, cluster) if cluster and nbytes else None,
    )


def _predicted(op: str, group: tuple[int, ...], nbytes: int, cluster: Cluster) -> float | None:
    """Time a call that runs alone, in one node as NCCL would, between nodes by the closed form."""
    if op not in library.NODE_OPERATIONS or len(group) == 1:
        return None
    ordered = sorted(group)
    link = axes.link(cluster, ordered[1] - ordered[0], len(group))
    if link.kind != NETWORK:
        return library.node_seconds(op, nbytes, len(group), link)
    return library.NODE_OPERATIONS[op](nbytes, len(group)).seconds(link)


def _kinds(recording: Recording, rank: int) -> dict[str, float]:
    """Split one rank's time, from its first event to its last, by what its GPU did.

    Groups whose collectives run at once are each counted; "exposed" counts no moment twice.
    """
    mine = [event for event in recording.events if event.rank == rank]
    if not mine:
        return {}
    kernels = [(each.op, each.start, each.end) for each in mine if each.kind == "compute"]
    found: dict[str, float] = {}
    for op, start, end in kernels:
        name = op if op in ("products", "attention") else "other kernels"
        found[name] = found.get(name, 0.0) + end - start
    computing = [(start, end) for _, start, end in kernels]
    sent: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for event in mine:
        if event.kind == "communicate":
            sent.setdefault(event.group, []).append((event.start, event.end))
    busy = _length(computing)
    for group, spans in sent.items():
        exposed = _length([*computing, *spans]) - busy
        found[f"exposed in {ranks_text(group)}"] = exposed
        hidden = _length(spans) - exposed
        found[f"hidden in {ranks_text(group)}"] = hidden
    everything = _length([*computing, *(span for spans in sent.values() for span in spans)])
    found["exposed"] = everything - busy
    whole = max(event.end for event in mine) - min(event.start for event in mine)
    if recording.kernels.get(rank):  # without kernels, computing is not recorded
        found["nothing launched"] = whole - everything
    found["all"] = whole
    return found


def ranks_text(group: Sequence[int]) -> str:
    """Name a group: "ranks 0, 2" or "ranks 0 to 7"."""
    if len(group) > 2 and list(group) == list(range(group[0], group[-1] + 1)):  # noqa: PLR2004
        return f"ranks {group[0]} to {group[-1]}"
    shown = ", ".join(map(str, group[:4]))
    return f"ranks {shown}{', ...' if len(group) > 4 else ''}"  # noqa: PLR2004


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Measure the union of spans."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
