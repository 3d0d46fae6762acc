"""What ranks did, event by event, as plain data: recorded by `ranks.observe.ledger`, counted here, drawn by `figures`.

A trace that `costs.traces.replay` can play holds, for every rank in order, what it computed in FLOPs, each
communication where it was issued, and each waiting for one.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

# Bytes a rank sends under a bandwidth-optimal algorithm, as a share of the message, for n ranks. Averaged over ranks
# where they differ (broadcast and reduce: n - 1 ranks of a chain pass the message on). A message's size is that of
# nccl-tests: the larger of what goes in and what comes out on one rank. In gather and scatter that is n pieces on the
# root and one piece on each of the n - 1 others, 2n - 1 in all, of which n - 1 travel.
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
_RING_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / (2 * n - 1),
    "scatter": lambda n: (n - 1) / (2 * n - 1),
    "barrier": lambda n: 0.0,
    "send": lambda n: 1.0,
    "receive": lambda n: 0.0,
}


@dataclass(frozen=True)
class Event:
    """Something a rank did."""

    rank: int
    kind: str  # "communicate", "compute", or "idle": waiting for a communication
    op: str  # the collective's verb, or the name of the span
    group: tuple[int, ...]  # ranks that took part
    nbytes: int  # payload: the larger of what goes in and what comes out on this rank
    start: float  # s, on a clock that all ranks of one machine share
    end: float  # s
    peer: int | None = None  # of a message between two ranks: the other one
    tag: int = 0  # of such a message: those of one tag arrive in order
    flops: int = 0  # of computing, counted
    number: int | None = None  # of a communication: its number on this rank; of a waiting: that of what it waits for

    @property
    def seconds(self) -> float:
        return self.end - self.start


def wire_bytes(event: Event) -> float:
    """Bytes this rank must put on the wire for the event under a bandwidth-optimal algorithm.

    Errors: ValueError for an operation whose share nobody has told.
    """
    if event.kind != "communicate":
        return 0.0
    if event.op not in _RING_SHARE:
        raise ValueError(f"how much does {event.op!r} put on the wire? Known are {', '.join(_RING_SHARE)}")
    return _RING_SHARE[event.op](len(event.group)) * event.nbytes


def communication(events: Iterable[Event]) -> list[Event]:
    """Only the events in which ranks talked."""
    return [event for event in events if event.kind == "communicate"]


def totals(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Per operation: how many, payload bytes, bytes on the wire, seconds."""
    table: dict[str, dict[str, float]] = {}
    for event in communication(events):
        row = table.setdefault(event.op, {"count": 0, "nbytes": 0, "wire_bytes": 0.0, "seconds": 0.0})
        row["count"] += 1
        row["nbytes"] += event.nbytes
        row["wire_bytes"] += wire_bytes(event)
        row["seconds"] += event.seconds
    return table


def chrome(
    events: Iterable[Event], *, where: str = "", rates: Mapping[str, Sequence[tuple[float, float]]] | None = None
) -> dict[str, Any]:
    """The events in Chrome's trace format, which https://ui.perfetto.dev opens.

    Every rank is a process with two rows: what it computed, idle time included, and what it said.
    Times are in microseconds and begin with the first event. where: said with every rank, for instance "replayed on …".
    rates: link -> (from when, bytes/s), drawn as one curve for each link.
    """
    events = list(events)
    origin = min((event.start for event in events), default=0.0)
    ranks, at = sorted({event.rank for event in events}), f", {where}" if where else ""
    names = [_name("thread", rank, kind, row) for rank in ranks for kind, row in _ROWS.items()]
    names += [_name("process", rank, f"rank {rank}{at}") for rank in ranks]
    shown = [_span(event, origin) for event in events]
    links = max(ranks, default=0) + 1
    names += [_name("process", links, f"links{at}")] if rates else []
    shown += [
        {"name": link, "ph": "C", "pid": links, "ts": (time - origin) * 1e6, "args": {"GB/s": rate / 1e9}}
        for link, history in (rates or {}).items()
        for time, rate in history
    ]
    return {"traceEvents": names + shown, "displayTimeUnit": "ms"}


_ROWS = {"compute": 0, "communicate": 1}


def _name(kind: str, process: int, name: str, row: int = 0) -> dict[str, Any]:
    return {"name": f"{kind}_name", "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def _span(event: Event, origin: float) -> dict[str, Any]:
    return {
        "name": event.op,
        "cat": event.kind,
        "ph": "X",
        "pid": event.rank,
        "tid": _ROWS["communicate" if event.kind == "communicate" else "compute"],
        "ts": (event.start - origin) * 1e6,
        "dur": event.seconds * 1e6,
        "args": {"group": list(event.group), "bytes": event.nbytes, "bytes on the wire": wire_bytes(event)},
    }


def plain(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The events as JSON can hold them; `from_plain` is the way back."""
    return [asdict(event) for event in events]


def from_plain(rows: Iterable[Mapping[str, Any]]) -> list[Event]:
    """The events of such rows."""
    return [Event(**{**row, "group": tuple(row["group"])}) for row in rows]


def save(events: Iterable[Event], path: str | Path) -> None:
    """Write a trace as JSON, one event a line, without the fields that have their default."""
    usual = {field.name: field.default for field in fields(Event)}
    rows = [{name: value for name, value in row.items() if value != usual[name]} for row in plain(events)]
    Path(path).write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def load(path: str | Path) -> list[Event]:
    """Read what `save` wrote. Errors: ValueError that names the line which is no event."""
    events = []
    for index, row in enumerate(json.loads(Path(path).read_text())):
        try:
            events += from_plain([row])
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {line(index)}: {row} is no event of a trace ({error})") from None
    return events


def line(index: int) -> int:
    """The line of a saved trace on which the event at this position stands."""
    return index + 2
