"""What ranks did, event by event, as plain data: recorded by `ranks.ledger`, counted here, drawn by `figures`."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
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
    kind: str  # "communicate", "compute", or "idle" (see `with_waiting`)
    op: str  # the collective's verb, or the name of the span
    group: tuple[int, ...]  # ranks that took part
    nbytes: int  # payload: the larger of what goes in and what comes out on this rank
    start: float  # s, on a clock that all ranks of one machine share
    end: float  # s

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


def with_waiting(events: Iterable[Event], op: str = "backward") -> list[Event]:
    """Part what a rank computed in its spans `op` from its waiting at their end.

    A backward of data parallelism ends when its last message has arrived. All its computing precedes the start of
    that message, so there the span ends, and the rest is an Event of kind "idle" and op "waiting". A span in which
    the rank started no message stays as it was.
    """
    events = list(events)
    return [part for event in events for part in (_parted(event, events) if event.op == op else [event])]


def _parted(span: Event, events: list[Event]) -> list[Event]:
    mine = (event.start for event in communication(events) if event.rank == span.rank)
    issued = [start for start in mine if span.start <= start < span.end]
    if span.kind != "compute" or not issued:
        return [span]
    waiting = replace(span, kind="idle", op="waiting", start=max(issued))
    return [replace(span, end=max(issued)), waiting]


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


def chrome(events: Iterable[Event]) -> dict[str, Any]:
    """The events in Chrome's trace format, which https://ui.perfetto.dev opens.

    Every rank is a process with two rows: what it computed, idle time included, and what it said.
    Times are in microseconds and begin with the first event.
    """
    events = list(events)
    origin = min((event.start for event in events), default=0.0)
    rows = {"compute": 0, "communicate": 1}
    shown = [
        {
            "name": event.op,
            "cat": event.kind,
            "ph": "X",
            "pid": event.rank,
            "tid": rows["communicate" if event.kind == "communicate" else "compute"],
            "ts": (event.start - origin) * 1e6,
            "dur": event.seconds * 1e6,
            "args": {"group": list(event.group), "bytes": event.nbytes, "bytes on the wire": wire_bytes(event)},
        }
        for event in events
    ]
    names = [
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": row, "args": {"name": kind}}
        for rank in sorted({event.rank for event in events})
        for kind, row in rows.items()
    ]
    names += [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
        for rank in sorted({event.rank for event in events})
    ]
    return {"traceEvents": names + shown, "displayTimeUnit": "ms"}


def plain(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The events as JSON can hold them; `Event(**row)` of each row, with a tuple for the group, is the way back."""
    return [asdict(event) for event in events]
