"""A trace: what ranks did, event by event, as plain data.

`ranks.observe.ledger` records traces, this file counts them, `figures` draw them. A trace that
`costs.traces.replay` can play holds, for every rank in order, what it computed in FLOPs, each
communication where it was issued, and each wait for one.
"""

import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .files import given
from .files.arguments import checked

# Bytes that a rank sends under a bandwidth-optimal algorithm, as a share of the message, for n
# ranks. Where ranks differ, the share is their average: in broadcast and reduce, n - 1 ranks of a
# chain pass the message on. The message's size is that of nccl-tests, the larger of input and
# output of one rank. In gather and scatter that is n pieces on the root and one on each of the n -
# 1 others, 2n - 1 in all, of which n - 1 travel.
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
@checked
class Event:
    """One thing that a rank did, with its start and end."""

    rank: int
    kind: str  # "communicate", "compute", or "idle": waiting for a communication
    op: str  # the collective's verb, or the name of the span
    group: tuple[int, ...]  # ranks that took part
    nbytes: int  # payload: the larger of what goes in and what comes out on this rank
    start: float  # s, on a clock that all ranks of one machine share
    end: float  # s
    peer: int | None = None  # of a point-to-point message: the other rank
    tag: int = 0  # of a point-to-point message: those with the same tag arrive in order
    flops: int = 0  # of computing, counted
    # Of a ragged all-to-all: the bytes for each rank of the group, 0 for this one.
    pieces: tuple[int, ...] | None = None
    # The number of a communication on this rank; of a wait, the number of what it waits for.
    number: int | None = None

    def __post_init__(self) -> None:
        if self.kind == "communicate" and not self.group:
            raise ValueError(f"{self.op} has no group; pass the ranks that took part")

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


def wire_bytes(event: Event) -> float:
    """Compute the bytes that the rank of `event` sends under a bandwidth-optimal algorithm.

    Errors: ValueError for an operation that is not listed here.
    """
    if event.kind != "communicate":
        return 0.0
    sent = ring_bytes(event.op, event.nbytes, len(event.group))
    return sent if event.pieces is None else sum(event.pieces)


def ring_bytes(op: str, nbytes: int, ranks: int) -> float:
    """Compute the bytes that a rank sends in a collective of `nbytes` payload over a group.

    Errors: ValueError for an operation that is not listed here.
    """
    if op not in _RING_SHARE:
        raise ValueError(f"unknown operation {op!r}; known: {', '.join(_RING_SHARE)}")
    return _RING_SHARE[op](ranks) * nbytes


def communication(events: Iterable[Event]) -> list[Event]:
    """Select the events in which ranks communicated."""
    return [event for event in events if event.kind == "communicate"]


def totals(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Sum up each operation: its count, payload bytes, bytes on the wire, seconds."""
    table: dict[str, dict[str, float]] = {}
    for event in communication(events):
        zeros = {"count": 0, "nbytes": 0, "wire_bytes": 0.0, "seconds": 0.0}
        row = table.setdefault(event.op, zeros)
        row["count"] += 1
        row["nbytes"] += event.nbytes
        row["wire_bytes"] += wire_bytes(event)
        row["seconds"] += event.seconds
    return table


def chrome(
    events: Iterable[Event],
    *,
    where: str = "",
    rates: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> dict[str, Any]:
    """Convert `events` into Chrome's trace format, which https://ui.perfetto.dev opens.

    Every rank is a process with two rows: what it computed, idle time included, and what it
    communicated. Times are in microseconds and begin with the first event.
    where: follows the name of every rank, for instance "replayed on …".
    rates: link -> (from when, bytes/s), drawn as one curve for each link.
    """
    events = list(events)
    origin = min((event.start for event in events), default=0.0)
    ranks = sorted({event.rank for event in events})
    suffix = f", {where}" if where else ""
    names = [_name("thread", rank, kind, row) for rank in ranks for kind, row in _ROWS.items()]
    names += [_name("process", rank, f"rank {rank}{suffix}") for rank in ranks]
    shown = [_span(event, origin) for event in events]
    if rates:
        links = max(ranks, default=0) + 1
        names.append(_name("process", links, f"links{suffix}"))
        for link, history in rates.items():
            shown += [_rate(links, link, (time - origin) * 1e6, rate) for time, rate in history]
    return {"traceEvents": names + shown, "displayTimeUnit": "ms"}


_ROWS = {"compute": 0, "communicate": 1}


def _name(kind: str, process: int, name: str, row: int = 0) -> dict[str, Any]:
    return {"name": f"{kind}_name", "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def _rate(process: int, link: str, microseconds: float, rate: float) -> dict[str, Any]:
    """From this time on, a link carries `rate` bytes/s."""
    args = {"GB/s": rate / 1e9}
    return {"name": link, "ph": "C", "pid": process, "ts": microseconds, "args": args}


def _span(event: Event, origin: float) -> dict[str, Any]:
    return {
        "name": event.op,
        "cat": event.kind,
        "ph": "X",
        "pid": event.rank,
        "tid": _ROWS["communicate" if event.kind == "communicate" else "compute"],
        "ts": (event.start - origin) * 1e6,
        "dur": event.seconds * 1e6,
        "args": {
            "group": list(event.group),
            "bytes": event.nbytes,
            "bytes on the wire": wire_bytes(event),
        },
    }


def plain(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Convert events to rows that JSON can hold; `from_plain` converts them back."""
    return [asdict(event) for event in events]


def from_plain(rows: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Make events from the rows of `plain`.

    Errors: ValueError for a row that lacks a field, has another one, or one of another type.
    """
    return [_event(row) for row in rows]


def _event(row: Mapping[str, Any]) -> Event:
    if not isinstance(row, Mapping):
        raise ValueError("it is no object with the fields of an event")
    known = {field.name: field.default for field in fields(Event)}
    missing = [name for name in known if known[name] is MISSING and name not in row]
    unknown = [name for name in row if name not in known]
    for what, names in {"missing": missing, "unknown": unknown}.items():
        if names:
            raise ValueError(f"{', '.join(map(str, names))}: {what}")
    # JSON has no tuples.
    values: Any = {name: tuple(x) if isinstance(x, list) else x for name, x in row.items()}
    return Event(**values)


def save(events: Iterable[Event], path: str | Path) -> None:
    """Write a trace to `path` as JSON, one event a line, without fields that have their default."""
    usual = {field.name: field.default for field in fields(Event)}
    lines = []
    for row in plain(events):
        changed = {name: value for name, value in row.items() if value != usual[name]}
        lines.append(json.dumps(changed))
    Path(path).write_text("[\n" + ",\n".join(lines) + "\n]\n")


@given.in_one_line()
def load(path: str | Path) -> list[Event]:
    """Read what `save` wrote to `path`. Errors: ValueError that names the line at fault."""
    text = given.read(path)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); pass a file of trace.save") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path} holds no list of events; pass a file of trace.save")
    events = []
    for index, row in enumerate(rows):
        try:
            events.append(_event(row))
        except ValueError as error:
            where, what = f"{path}, line {line(index)}", reprlib.repr(row)
            raise ValueError(f"{where}: {what} is not an event of a trace ({error})") from None
    return events


def line(index: int) -> int:
    """Return the number of the line on which `save` writes event `index`."""
    return index + 2
