"""What a recording says of a step, and beside it what `costs` predicts for the same bytes."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from shardlab import trace
from shardlab.costs.collectives import library
from shardlab.costs.facts.network import NETWORK, Cluster
from shardlab.costs.step import Step, axes
from shardlab.files.arguments import checked

from .recording import RecordedCall, Recording

LONG = 16e6  # bytes: longer messages are bound by the links' rate, shorter ones also by latency
NAMED = 3  # differences
TABLE = Path(__file__).with_name("differences.csv")


@checked
def report(
    recording: Recording, cluster: Cluster | None = None, step: Step | None = None
) -> dict[str, Any]:
    """Sum a recording up in seconds, bytes and bytes/s, as --json prints it. step: predicted.

    Errors: ValueError for a cluster with too few GPUs.
    """
    if cluster and cluster.gpus < recording.world_size:
        raise ValueError(
            f"{recording.world_size} ranks do not fit on {cluster.name} with {cluster.gpus} GPUs; "
            f"use the cluster that they ran on"
        )
    clocks = recording.clocks
    late: dict[int, dict[str, float]] = {}
    alike: dict[tuple[str, tuple[int, ...], int], list[RecordedCall]] = {}
    for call in recording.calls:
        nbytes = max(event.nbytes for event in call)
        alike.setdefault((call[0].op, call[0].group, nbytes), []).append(call)
        if len(call) > 1 and not clocks:
            one = late.setdefault(call.last.rank, {"seconds": 0.0, "last": 0})
            one["seconds"] += sum(call.waits)
            one["last"] += 1
    late = dict(sorted(late.items(), key=lambda each: -each[1]["seconds"]))
    collectives = [_collectives(*key, same, not clocks, cluster) for key, same in alike.items()]
    kinds = {rank: _kinds(recording, rank) for rank in recording.ranks}
    busy = sum(event.seconds for event in recording.events)
    rest = sum(event.seconds for event in recording.events if event.op == "rest")
    return {
        "ranks": recording.ranks,  # of which there is a file
        "world_size": recording.world_size,
        "step": recording.step,
        "dialect": recording.dialect,
        "missing": [*filter(None, [clocks]), *recording.missing],  # what cannot be told
        "unnamed": rest / busy if busy else 0.0,  # share whose names do not tell what they compute
        "kinds": kinds,  # rank -> kind -> seconds
        "collectives": sorted(collectives, key=lambda each: -each["kernels"]),
        "late": late,  # rank -> what the others waited for it, and calls to which it came last
        "cluster": cluster.name if cluster else None,
        "predicted": step.summary if step else None,  # part -> seconds of the step
        "differences": _differences(kinds, collectives, next(iter(late), None), step),
    }


def _collectives(
    op: str,
    group: tuple[int, ...],
    nbytes: int,
    calls: Sequence[RecordedCall],
    agree: bool,
    cluster: Cluster | None,
) -> dict[str, Any]:
    """Sum up the calls of one operation in one group with one size, on all recorded ranks."""
    told = len(calls[0]) > 1 and agree
    sending = fmean(call.last.seconds for call in calls) if told else None
    bus = trace.ring_bytes(op, nbytes, len(group))
    return {
        "op": op,
        "group": group,
        "nbytes": nbytes,  # 0: not known
        "count": len(calls),
        "kernels": sum(event.seconds for call in calls for event in call),  # s, of all ranks
        "waiting": sum(sum(call.waits) for call in calls) if told else 0.0,  # s of it
        "sending": sending,  # s of one call, once the last rank came; None where that is not told
        "busbw": bus / sending if sending and bus else None,  # bytes/s, as nccl-tests counts them
        "predicted": _predicted(op, group, nbytes, cluster) if cluster and nbytes else None,  # s
    }


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
    found: dict[str, float] = {}
    computing: list[tuple[float, float]] = []
    sent: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for event in recording.events:
        if event.rank != rank:
            continue
        if event.kind == "communicate":
            sent.setdefault(event.group, []).append((event.start, event.end))
        else:
            name = event.op if event.op in ("products", "attention") else "other kernels"
            found[name] = found.get(name, 0.0) + event.seconds
            computing.append((event.start, event.end))
    for group, spans in sent.items():
        exposed = length([*computing, *spans]) - length(computing)
        found[f"exposed in {ranks_text(group)}"] = exposed
        found[f"hidden in {ranks_text(group)}"] = length(spans) - exposed
    everything = [*computing, *(span for spans in sent.values() for span in spans)]
    if everything:
        found["exposed"] = length(everything) - length(computing)
        found["all"] = max(end for _, end in everything) - min(start for start, _ in everything)
        if recording.on_gpu:  # without kernels, computing is not recorded
            found["nothing launched"] = found["all"] - length(everything)
    return found


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Measure the union of spans, in their unit."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def ranks_text(group: Sequence[int]) -> str:
    """Name a group: "ranks 0, 2" or "ranks 0 to 7"."""
    if len(group) > 2 and list(group) == list(range(group[0], group[-1] + 1)):  # noqa: PLR2004
        return f"ranks {group[0]} to {group[-1]}"
    return f"ranks {', '.join(map(str, group[:4]))}{', ...' * (len(group) > 4)}"  # noqa: PLR2004


def _differences(
    kinds: Mapping[int, Mapping[str, float]],
    collectives: Iterable[Mapping[str, Any]],
    first: int | None,
    step: Step | None,
) -> list[dict[str, Any]]:
    """List the largest seconds of a step, per rank, that were recorded and not predicted.

    first: the rank that was waited for most, or None.
    """
    found = {"waiting": 0.0, "long": 0.0, "short": 0.0}
    for each in collectives:
        found["waiting"] += each["waiting"]
        if None not in (each["sending"], each["predicted"]):
            slower = (each["sending"] - each["predicted"]) * each["count"] * len(each["group"])
            found["long" if each["nbytes"] > LONG else "short"] += slower
    found = {name: total / len(kinds) for name, total in found.items()}

    def mean(kind: str) -> float:
        return fmean(each.get(kind, 0.0) for each in kinds.values())

    found["idle"] = mean("nothing launched")
    if step:
        computing = sum(map(mean, ("products", "attention", "other kernels")))
        found["computing"] = computing - step.computing
        communicating = step.seconds * step.communication
        found["exposed"] = mean("exposed") - found["waiting"] - communicating
    with open(TABLE, encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    differences: list[dict[str, Any]] = [
        {**row, "seconds": found[row["name"]], "seen": row["seen"].format(rank=first)}
        for row in rows
        if found.get(row["name"], 0.0) > 0
    ]
    return sorted(differences, key=lambda each: -each["seconds"])[:NAMED]
