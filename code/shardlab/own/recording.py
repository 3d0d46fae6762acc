"""What was recorded of a run on several ranks: collectives and kernels as plain data."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardlab.costs.traces import matching, waiting
from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.trace import Event

_BYTES = {  # of one element, by what follows the last dot of its type's name
    **dict.fromkeys(("double", "float64", "long", "long int", "int64", "complexfloat"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "c10::half", "bfloat16", "c10::bfloat16", "short"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "uint8", "int8", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
}
_VERBS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherinto": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "receive",
}
_LISTED = re.compile(r"\s*\[\s*\d+(\s*,\s*\d+)*\s*\]\s*")
MESSAGES = ("send", "receive")
MOST_RANKS = 1 << 20
_MOST_DIMS = 16
_LARGEST = 1e18
MOST_NBYTES = 1 << 50


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy on a GPU."""

    name: str
    sort: str  # "collectives", "products", "attention", "copies" or "rest"
    start: float  # s, on the clock of the events
    end: float  # s


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What was recorded of some ranks of a run, with times in seconds from the first event."""

    ranks: tuple[int, ...]  # of which there is a file
    world_size: int
    step: str | None  # the step that was chosen, or None for all that was recorded
    dialect: str  # who wrote it, in words
    events: list[Event]  # number: its place in its group, if told; a size of 0 is not known
    kernels: dict[int, list[Kernel]] = field(repr=False)  # rank -> its kernels, by start
    missing: tuple[str, ...] = ()  # what could not be read, in sentences

    @property
    def calls(self) -> list[list[Event]]:
        """The collectives that all recorded ranks of a group have, each as the events of its ranks.

        Calls match by the group's sequence numbers, and by their order where there are none. A size
        that only some of the ranks know counts for all. Messages between two ranks are left out.
        """
        found: dict[tuple[Any, ...], list[Event]] = {}
        counts: Counter[tuple[Any, ...]] = Counter()
        for event in self.events:
            if event.kind == "communicate" and event.op not in MESSAGES:
                nth, told = counts[event.rank, event.group], event.number
                counts[event.rank, event.group] += 1
                key = event.group, told is None, nth if told is None else told, event.op
                found.setdefault(key, []).append(event)
        calls = []
        for (group, *_), members in found.items():
            if sorted(event.rank for event in members) == sorted(set(group) & set(self.ranks)):
                if members[0].op in matching.SAME_SIZE:
                    nbytes = max(event.nbytes for event in members)
                    members = [replace(event, nbytes=nbytes) for event in members]
                calls.append(members)
        return calls

    @property
    def together(self) -> list[Event]:
        """The events of `calls` in order, in groups of recorded ranks."""
        found = [
            replace(event, group=tuple(r for r in event.group if r in self.ranks), number=None)
            for members in self.calls
            for event in members
        ]
        return sorted(found, key=lambda each: each.start)

    def who_waits(self) -> dict[tuple[int, int], float]:
        """Add up the waiting in collectives, as (waiting rank, rank it waits for) -> seconds.

        It is a lower bound where ranks are missing. Errors: ValueError where the ends of
        collectives lie further apart than ranks wait, so that the clocks cannot agree.
        """
        found = waiting.who_waits(self.together)
        ends = [[event.end for event in members] for members in self.calls]
        spread = sum(max(each) - min(each) for each in ends)
        longest = sum(max(waited(event, members) for event in members) for members in self.calls)
        if found and spread >= longest:
            raise ValueError(
                f"the ends of collectives lie {spread * 1e6:,.0f} us apart in all, and ranks wait "
                f"{longest * 1e6:,.0f} us at most: the clocks differ; record ranks of one host"
            )
        return found

    @property
    def unnamed(self) -> float:
        """The share of the kernels' seconds whose names do not tell what they compute."""
        kernels = [kernel for each in self.kernels.values() for kernel in each]
        total = sum(kernel.end - kernel.start for kernel in kernels)
        rest = sum(kernel.end - kernel.start for kernel in kernels if kernel.sort == "rest")
        return rest / total if total else 0.0


def last_to_come(members: Iterable[Event]) -> Event:
    """Return the event of a call that began last: until then the others waited."""
    return max(members, key=lambda event: event.start)


def waited(event: Event, members: Iterable[Event]) -> float:
    """Return the seconds for which one rank of a call waited for the last one."""
    return min(last_to_come(members).start, event.end) - event.start


@checked
def verb(name: str) -> str | None:
    """Return the book's verb for a collective's name in torch, NCCL or gloo, or None."""
    plain = name.lower().rpartition(":")[2].removesuffix("_coalesced_")
    for part in ("_base", "_coalesced", "_tensor", "_single", "_"):
        plain = plain.replace(part, "")
    return _VERBS.get(plain) or _VERBS.get(plain.removesuffix("v"))


@checked
def element_bytes(dtype: object) -> int:
    """Return the bytes of an element of a type as torch names it; 0 if it is not known."""
    return _BYTES.get(str(dtype).lower(), 0)


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
    if isinstance(value, str) and len(value) < 8 * MOST_RANKS and _LISTED.fullmatch(value):
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


def only_once(ranks: Iterable[int]) -> tuple[int, ...]:
    """Sort the ranks of all files. Errors: ValueError if two files are of the same rank."""
    counts = Counter(ranks)
    if twice := [rank for rank, count in sorted(counts.items()) if count > 1]:
        raise ValueError(f"two files are of rank {twice[0]}; pass one file of each rank")
    return tuple(sorted(counts))


def communication(
    rank: int,
    op: str,
    group: tuple[int, ...],
    nbytes: int,
    start: float,
    end: float,
    *,
    number: Any = None,
    peer: int | None = None,
) -> Event:
    """Make the event of a collective or message, as far as a file is to be believed."""
    size = 0 if op == "barrier" else min(nbytes, MOST_NBYTES)
    told = number if type(number) is int else None
    return Event(rank, "communicate", op, group, size, start, end, peer=peer, number=told)


def assembled(
    ranks: Iterable[int],
    world: int,
    events: Iterable[Event],
    *,
    unit: float,
    dialect: str,
    missing: Sequence[str],
    kernels: Mapping[int, Sequence[Kernel]] | None = None,
    step: str | None = None,
) -> Recording:
    """Put the ranks' events, whose times are in `unit` seconds, in order and on one clock."""
    present = only_once(ranks)
    ordered = sorted(events, key=lambda event: (event.start, event.rank))
    origin = ordered[0].start if ordered else 0.0

    def moved(thing: Any) -> Any:
        # Subtracted first: a float of seconds since 1970 cannot hold nanoseconds.
        start, end = (thing.start - origin) * unit, (thing.end - origin) * unit
        return replace(thing, start=start, end=end)

    few = [f"{len(present)} of {world} ranks have a file: waiting is a lower bound"]
    return Recording(
        ranks=present,
        world_size=world,
        step=step,
        dialect=dialect,
        events=[moved(event) for event in ordered],
        kernels={rank: [moved(each) for each in (kernels or {}).get(rank, [])] for rank in present},
        missing=(*missing, *(few if len(present) < world else [])),
    )
