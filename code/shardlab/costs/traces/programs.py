"""Programs made without running them: what ranks would do, as a trace that `replay` plays.

A plan of `exchanges` becomes the messages of one collective. For what ranks really do, record them with
`ranks.observe.ledger`.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from shardlab.exchanges import Move, Plan, cuts
from shardlab.trace import Event


class Writer:
    """Writes the program of one rank, event by event; times are nobody's business yet."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[Event] = []

    def compute(self, flops: float, op: str = "compute") -> None:
        """So many FLOPs."""
        self._add("compute", op, (self.rank,), flops=round(flops))

    def send(self, nbytes: int, to: int, group: Sequence[int], tag: int = 0) -> int:
        """A message leaves; returns its number, to wait for."""
        return self._add("communicate", "send", tuple(group), nbytes, peer=to, tag=tag)

    def receive(self, nbytes: int, source: int, group: Sequence[int], tag: int = 0) -> int:
        """A message is expected; returns its number, to wait for."""
        return self._add("communicate", "receive", tuple(group), nbytes, peer=source, tag=tag)

    def collective(self, op: str, nbytes: float, group: Sequence[int]) -> int:
        """The rank takes part in a collective; returns its number, to wait for."""
        return self._add("communicate", op, tuple(group), round(nbytes))

    def wait(self, numbers: Iterable[int]) -> None:
        """The rank stops until those communications have ended."""
        for number in numbers:
            self._add("idle", "waiting", (self.rank,), number=number)

    def _add(self, kind: str, op: str, group: tuple[int, ...], nbytes: int = 0, **more: int) -> int:
        number = len(self.events)
        if kind == "communicate":
            more["number"] = number
        self.events.append(Event(self.rank, kind, op, group, nbytes, 0.0, 0.0, **more))
        return number


def of_plan(plan: Plan, nbytes: int, *, element: int = 4) -> list[Event]:
    """All ranks carry out a plan on a buffer of `nbytes`: issue the messages of a step, wait for them, then the next.

    Errors: ValueError for a buffer that does not hold whole numbers of `element` bytes.
    """
    if nbytes % element:
        raise ValueError(f"{nbytes} bytes hold no whole number of elements of {element}; use a multiple")
    sizes = [element * (end - begin) for begin, end in pairwise(cuts(nbytes // element, plan.num_pieces))]
    writers = [Writer(rank) for rank in range(plan.num_ranks)]
    everyone = range(plan.num_ranks)
    for step in plan.steps:
        issued: list[list[int]] = [[] for _ in everyone]
        for move, size in ((move, _size(move, sizes)) for move in step):
            if size:
                issued[move.source].append(writers[move.source].send(size, move.to, everyone))
                issued[move.to].append(writers[move.to].receive(size, move.source, everyone))
        for writer, numbers in zip(writers, issued, strict=True):
            writer.wait(numbers)
    return [event for writer in writers for event in writer.events]


def _size(move: Move, sizes: Sequence[int]) -> int:
    return sum(sizes[piece] for piece in move.pieces)
