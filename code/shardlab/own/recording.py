"""What was recorded of a run on several ranks: collectives and computing as plain data."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab.costs.traces import matching, waiting
from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.trace import Event

_BYTES = {  # of one element, by what follows the last colon of its type's name
    **dict.fromkeys(("double", "float64", "long", "long int", "int64", "complexfloat"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "uint8", "int8", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
_VERBS = {  # the first that is in a name without its low lines
    **{"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"},
    **{"alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather"},
    **{"scatter": "scatter", "barrier": "barrier", "send": "send", "recv": "receive"},
}
MESSAGES = ("send", "receive")
MOST_RANKS = 1 << 20
MOST_NBYTES = 1 << 50
_MOST_DIMS = 16
_LARGEST = 1e18


class RecordedCall(list[Event]):
    """One collective, as the events of its recorded ranks."""

    @property
    def last(self) -> Event:
        """The event that began last: until then the other ranks waited."""
        return max(self, key=lambda event: event.start)

    @property
    def waits(self) -> list[float]:
        """The seconds for which each rank waited for the last one."""
        return [waiting.begin(event, self.last) - event.start for event in self]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What was recorded of some ranks of a run, with times in seconds from the first event."""

    ranks: tuple[int, ...]  # of which there is a file
    world_size: int
    step: str | None  # the step that was chosen, or None for all that was recorded
    dialect: str  # who wrote it, in words
    events: list[Event]  # number: its place in its group, if told; a size of 0 is not known
    on_gpu: bool  # whether kernels were recorded
    missing: tuple[str, ...]  # what could not be read, in sentences

    @property
    def calls(self) -> list[RecordedCall]:
        """The collectives that all recorded ranks of a group have.

        Calls match by the group's sequence numbers, and by their order where there are none. A size
        that only some of the ranks know counts for all. Messages between two ranks are left out.
        """
        found: dict[tuple[Any, ...], RecordedCall] = {}
        counts: Counter[tuple[Any, ...]] = Counter()
        for event in self.events:
            if event.kind == "communicate" and event.op not in MESSAGES:
                nth, told = counts[event.rank, event.group], event.number
                counts[event.rank, event.group] += 1
                key = event.group, told is None, nth if told is None else told, event.op
                found.setdefault(key, RecordedCall()).append(event)
        calls = []
        for (group, *_), call in found.items():
            if sorted(event.rank for event in call) == sorted(set(group) & set(self.ranks)):
                if call[0].op in matching.SAME_SIZE:
                    nbytes = max(event.nbytes for event in call)
                    call = RecordedCall(replace(event, nbytes=nbytes) for event in call)
                calls.append(call)
        return calls

    @property
    def together(self) -> list[Event]:
        """The events of `calls` in order, in groups of recorded ranks, for `costs.traces`."""
        found = [
            replace(event, group=tuple(r for r in event.group if r in self.ranks), number=None)
            for call in self.calls
            for event in call
        ]
        return sorted(found, key=lambda each: each.start)

    @property
    def clocks(self) -> str:
        """Why the ranks' clocks cannot agree, or "".

        They differ where the ends of collectives lie further apart than ranks wait.
        """
        calls = self.calls
        longest = sum(max(call.waits) for call in calls)
        ends = [[event.end for event in call] for call in calls]
        spread = sum(max(each) - min(each) for each in ends)
        if not longest or spread < longest:
            return ""
        return (
            f"the ends of collectives lie {spread * 1e6:,.0f} us apart in all, and ranks wait "
            f"{longest * 1e6:,.0f} us at most: the clocks differ; record ranks of one host"
        )


@checked
def verb(name: str) -> str | None:
    """Return the book's verb for a collective's name in torch, NCCL or gloo, or None."""
    plain = name.lower().replace("_", "")
    return next((verb for word, verb in _VERBS.items() if word in plain), None)


def message_bytes(op: str, count: int, dtype: object) -> int:
    """Return the bytes of elements of a type as torch names it; 0 if it is not known."""
    element = _BYTES.get(str(dtype).lower().rpartition(":")[2], 0)
    return 0 if op == "barrier" else min(count * element, MOST_NBYTES)


@checked
def elements(dims: object, depth: int = 3) -> int:
    """Count the elements of a shape, or of a list of shapes to that depth; 0 for what is none."""
    if not isinstance(dims, Sequence) or isinstance(dims, str) or not dims or not depth:
        return 0
    if all(type(dim) is int and dim >= 0 for dim in dims):
        return math.prod(dims) if len(dims) <= _MOST_DIMS else 0
    return sum(elements(each, depth - 1) for each in dims)


@checked
def listed_ranks(value: object) -> tuple[int, ...]:
    """Read a list of ranks, also as text; () for one that is shortened or not known."""
    if isinstance(value, str) and re.fullmatch(r"\s*\[[\d\s,]{1,8000000}\]\s*", value):
        value = [int(each) for each in re.findall(r"\d{1,8}", value)]
    if not isinstance(value, list | tuple):
        return ()
    whole = all(type(rank) is int and 0 <= rank < MOST_RANKS for rank in value)
    return tuple(value) if whole and len(set(value)) == len(value) else ()


def whole(value: Any, name: str, most: int) -> int:
    """Return a whole number from 0 to `most` of a file. Errors: ValueError that names it."""
    if type(value) is not int or not 0 <= value <= most:
        words = given.line(repr(value))
        raise ValueError(f"{name}={words} must be a whole number from 0 to {most:,}")
    return value


def finite(value: Any, name: str) -> float:
    """Return a finite number of a file. Errors: ValueError that names it."""
    if type(value) not in (int, float) or not abs(value) < _LARGEST:
        raise ValueError(f"{name}={given.line(repr(value))} must be a finite number")
    return float(value)


def assembled(
    ranks: Iterable[int],
    events: Iterable[Event],
    *,
    world_size: int,
    unit: float,
    dialect: str,
    missing: Iterable[str],
    step: str | None = None,
    on_gpu: bool = False,
) -> Recording:
    """Put the ranks' events, whose times are in `unit` seconds, in order and on one clock.

    Errors: ValueError if two files are of the same rank.
    """
    present = sorted(ranks)
    if twice := [rank for rank, count in Counter(present).items() if count > 1]:
        raise ValueError(f"two files are of rank {twice[0]}; pass one file of each rank")
    ordered = sorted(events, key=lambda event: (event.start, event.rank))
    origin = ordered[0].start if ordered else 0.0
    # Subtracted first: a float of seconds since 1970 cannot hold nanoseconds.
    moved = [
        replace(each, start=(each.start - origin) * unit, end=(each.end - origin) * unit)
        for each in ordered
    ]
    few = f"{len(present)} of {world_size} ranks have a file: waiting is a lower bound"
    if len(present) == 1:
        few = (
            f"rank {present[0]} alone says how long its collectives took, and not how much of it "
            "was waiting and how much sending; give the files of the other ranks, of one host"
        )
    return Recording(
        ranks=tuple(present),
        world_size=world_size,
        step=step,
        dialect=dialect,
        events=moved,
        on_gpu=on_gpu,
        missing=(*([few] if len(present) < world_size else []), *missing),
    )
