"""Programs made without running them: what ranks would do, as a trace that `replay` plays.

A plan of `exchanges` becomes the messages of one collective. To see what ranks really do, record
them with `ranks.observe.ledger`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from shardlab.arguments import Count, checked
from shardlab.exchanges import Move, Plan
from shardlab.trace import Event

from ..collectives.exchanges import piece_bytes


@checked
class Writer:
    """The program of one rank, written event by event."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[Event] = []

    def compute(self, flops: float, op: str = "compute") -> None:
        """Add arithmetic of `flops` FLOPs."""
        self._add("compute", op, (self.rank,), flops=round(flops))

    def work(self, seconds: float, op: str = "compute") -> None:
        """Add computing that takes `seconds`."""
        self._add("compute", op, (self.rank,), end=seconds)

    def send(self, nbytes: int, to: int, group: Sequence[int], tag: int = 0) -> int:
        """Send a message; return its number, to wait for."""
        return self._add("communicate", "send", tuple(group), nbytes, peer=to, tag=tag)

    def receive(self, nbytes: int, source: int, group: Sequence[int], tag: int = 0) -> int:
        """Post a receive; return its number, to wait for."""
        return self._add("communicate", "receive", tuple(group), nbytes, peer=source, tag=tag)

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
def of_plan(plan: Plan, nbytes: int, *, element: Count = 4) -> list[Event]:
    """Write how all ranks carry out a plan on a buffer of `nbytes`, one step after the other.

    A rank issues the messages of a step and waits for them before the next. Errors: ValueError for
    a buffer that does not hold whole numbers of `element` bytes.
    """
    if nbytes % element:
        raise ValueError(
            f"{nbytes} bytes are not a whole number of elements of {element} bytes; use a multiple"
        )
    sizes = piece_bytes(plan, nbytes // element, element)
    writers = [Writer(rank) for rank in range(plan.num_ranks)]
    everyone = range(plan.num_ranks)
    for step in plan.steps:
        issued: list[list[int]] = [[] for _ in everyone]
        for move in step:
            size = _size(move, sizes)
            if size:
                sent = writers[move.source].send(size, move.to, everyone)
                issued[move.source].append(sent)
                received = writers[move.to].receive(size, move.source, everyone)
                issued[move.to].append(received)
        for writer, numbers in zip(writers, issued, strict=True):
            writer.wait(numbers)
    return [event for writer in writers for event in writer.events]


def _size(move: Move, sizes: Sequence[int]) -> int:
    return sum(sizes[piece] for piece in move.pieces)
