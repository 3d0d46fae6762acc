"""Traces made without running anything: what ranks would do, as a trace that `replay` plays.

A plan of `exchanges` becomes the messages of one collective. To see what ranks really do, record
them with `ranks.observe.ledger`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from shardlab.exchanges import Move, Plan
from shardlab.files.arguments import checked
from shardlab.trace import Event

from ..collectives.exchanges import piece_bytes

ELEMENT = 4  # bytes of a number in fp32
AHEAD = 2  # receives that a rank posts before it needs them, see `ranks.collectives`


@checked
class Writer:
    """The trace of one rank, written event by event."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[Event] = []

    def compute(self, flops: float, op: str = "compute") -> None:
        """Add arithmetic of `flops` FLOPs."""
        self._add("compute", op, (self.rank,), flops=round(flops))

    def work(self, seconds: float, op: str = "compute") -> None:
        """Add computing that takes `seconds`."""
        self._add("compute", op, (self.rank,), end=seconds)

    def send(self, nbytes: int, to: int, group: Sequence[int]) -> int:
        """Send a message; return its number, to wait for."""
        return self._add("communicate", "send", tuple(group), nbytes, peer=to)

    def receive(self, nbytes: int, source: int, group: Sequence[int]) -> int:
        """Post a receive; return its number, to wait for."""
        return self._add("communicate", "receive", tuple(group), nbytes, peer=source)

    def collective(self, op: str, nbytes: float, group: Sequence[int]) -> int:
        """Take part in a collective; return its number, to wait for."""
        return self._add("communicate", op, tuple(group), round(nbytes))

    def wait(self, numbers: Iterable[int]) -> None:
        """Stop until the communications with these numbers have ended."""
        for number in numbers:
            self._add("idle", "waiting", (self.rank,), number=number)

    def _add(self, kind: str, op: str, group: tuple[int, ...], nbytes: int = 0, **more: Any) -> int:
        number = len(self.events)
        if kind == "communicate":
            more["number"] = number
        times = {"start": 0.0, "end": more.pop("end", 0.0)}
        self.events.append(Event(self.rank, kind, op, group, nbytes, **times, **more))
        return number


@checked
def of_plan(plan: Plan, nbytes: int) -> list[Event]:
    """Write how all ranks carry out a plan on a buffer of `nbytes`, as the textbook times it.

    A rank waits for what arrives in a step before it sends in the next; AHEAD receives are posted.
    Sends to one rank follow each other; it waits for them before it turns to another, where
    `ranks.collectives` goes on: trees differ, and two levels where neighbours' links are unequal.
    Errors: ValueError for a buffer that does not hold whole numbers of ELEMENT bytes.
    """
    if nbytes % ELEMENT:
        raise ValueError(
            f"{nbytes} bytes are not a whole number of elements of {ELEMENT} bytes; use a multiple"
        )
    sizes = piece_bytes(plan, nbytes // ELEMENT, ELEMENT)
    ranks = range(plan.num_ranks)
    return [event for rank in ranks for event in _role(plan, rank, sizes)]


def _role(plan: Plan, rank: int, sizes: Sequence[int]) -> list[Event]:
    """Write what one rank does in a plan."""
    writer, group = Writer(rank), range(plan.num_ranks)
    steps = [[move for move in step if _size(move, sizes)] for step in plan.steps]
    due = deque(move for step in steps for move in step if move.to == rank)
    asked: deque[int] = deque()
    sent: dict[int, list[int]] = {}  # to a rank, not waited for

    def ask() -> None:
        while due and len(asked) < AHEAD:
            move = due.popleft()
            asked.append(writer.receive(_size(move, sizes), move.source, group))

    for step in steps:
        ask()
        leaving = [move for move in step if move.source == rank]
        for to in sent.keys() - {move.to for move in leaving} if leaving else ():
            writer.wait(sent.pop(to))
        for move in leaving:
            sent.setdefault(move.to, []).append(writer.send(_size(move, sizes), move.to, group))
        for _ in (move for move in step if move.to == rank):
            ask()
            writer.wait([asked.popleft()])
    for numbers in sent.values():
        writer.wait(numbers)
    return writer.events


def _size(move: Move, sizes: Sequence[int]) -> int:
    return sum(sizes[piece] for piece in move.pieces)
