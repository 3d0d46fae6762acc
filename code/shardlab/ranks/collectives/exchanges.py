"""Plans executed: every rank takes its own part in each step, with messages from one rank to another and nothing else.

Three things make this as fast as a library. Long messages travel in parts, so that one part is added while the next one
arrives. A rank asks for a part before it needs it, so that no sender waits for the answer. And what arrives lands where
the sum belongs, so that the input need not be copied first.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...exchanges import ADD, Plan, cuts
from .. import comm

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}
PART = 2 * 2**20  # bytes: what has arrived is added while a processor's cache still holds it
AHEAD = 3  # parts that a rank has asked for and that have not arrived yet


class Receive(NamedTuple):
    """A message, or a part of a long one, as its receiver sees it."""

    source: int
    place: Tensor  # where it belongs
    mine: Tensor | None  # what it is added to; None: it is taken as it is
    after: int  # it is added to what this rank is sending: so many of its messages must have left before
    aside: bool  # its place is taken until then


@dataclass(frozen=True)
class Part:
    """What one rank does in a plan, with the tensors it does it to."""

    sends: list[list[tuple[Tensor, int]]]  # in every step, (message, to whom)
    receives: list[list[Receive]]
    kept: list[slice]  # places to which nothing is sent

    def exchanges(self) -> Iterator[tuple[tuple[Tensor, int] | None, Receive | None]]:
        """One part that leaves and one that arrives at a time; the sides of a step need not be equally long."""
        for sends, receives in zip(self.sends, self.receives, strict=True):
            yield from zip_longest(sends, receives)


def execute(plan: Plan, x: Tensor, y: Tensor, group: comm.Group, op: str = "sum") -> None:
    """Take this rank's part: x is what it brings, y becomes what it ends with; flat, equally long, and y may be x.

    Of two numbers the lower rank's comes first, so that every rank gets the same bits (the larger of 0.0 and -0.0 is
    the first). Errors: ValueError for an unknown operation, a plan for another number of ranks, or a length that must
    divide into equal pieces and does not.
    """
    if op not in OPERATIONS:
        raise ValueError(f"unknown operation {op!r}; use one of {', '.join(OPERATIONS)}")
    if plan.num_ranks != group.size():
        raise ValueError(f"the plan is for {plan.num_ranks} ranks, the group has {group.size()}; make it for the group")
    combine, rank = OPERATIONS[op], group.rank()
    if y.numel() % plan.num_pieces and any(move.shift for step in plan.steps for move in step):
        raise ValueError(f"{y.numel()} numbers make no {plan.num_pieces} equal pieces for a {plan.name}; pad them")
    part = part_of(plan, rank, x, y)
    mail = _Mail([each for step in part.receives for each in step], y, group)
    for message, each in part.exchanges():
        if message:
            mail.send([message])
        if each:
            arrived = mail.receive()
            if each.mine is not None:
                mail.wait_for(each.after)
                pair = (each.mine, arrived) if rank < each.source else (arrived, each.mine)
                combine(*pair, out=each.place)
    mail.wait_for(sum(map(len, part.sends)))
    for place in part.kept:
        y[place] = x[place]


def part_of(plan: Plan, rank: int, x: Tensor, y: Tensor) -> Part:
    """What this rank sends and receives in every step; x and y as in `execute`."""
    ends = cuts(y.numel(), plan.num_pieces)
    newest = [x] * plan.num_pieces  # where this rank's latest version of each piece is
    sent: list[tuple[Tensor, slice]] = []
    sends: list[list[tuple[Tensor, int]]] = [[] for _ in plan.steps]
    receives: list[list[Receive]] = [[] for _ in plan.steps]
    for number, step in enumerate(plan.steps):
        for move in (move for move in step if move.source == rank):
            leaving = [(newest[move.pieces[0]], place) for place in _places(move.pieces, ends, y)]
            sends[number] = [(buffer[place], move.to) for buffer, place in leaving]
            sent += leaving
        for move in (move for move in step if move.to == rank):
            mine = newest[move.landing[0]] if move.action == ADD else None
            for place in _places(move.landing, ends, y):
                after = _last(sent, y, place) if mine is y else 0
                tensors = y[place], None if mine is None else mine[place]
                receives[number].append(Receive(move.source, *tensors, after, aside=mine is y))
            newest[move.landing.start : move.landing.stop] = [y] * len(move.landing)
    kept = [slice(*place) for place, version in zip(pairwise(ends), newest, strict=True) if version is not y]
    return Part(sends, receives, kept)


def _places(pieces: range, ends: list[int], y: Tensor) -> list[slice]:
    """Where a message lies in the buffer, part by part. Both ends know how long it is: an empty one does not travel."""
    begin, end = ends[pieces.start], ends[pieces.stop]
    size = max(1, PART // y.element_size() if y.device.type == "cpu" else end - begin)  # NCCL: see `_Mail`
    return [slice(first, min(first + size, end)) for first in range(begin, end, size)]


def _last(sent: list[tuple[Tensor, slice]], y: Tensor, place: slice) -> int:
    """The number of the last message that leaves from this place of y, counted from 1; 0: none does."""
    return max(
        (number for number, (buffer, other) in enumerate(sent, 1) if buffer is y and _overlap(place, other)), default=0
    )


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)


class _Mail:
    """What leaves this rank and what it has asked for. NCCL pairs sends and receives only within one call of `start`.

    What is taken as it is lands in its place early, when this rank may still be at a step before. In the plans here
    that is safe: it is finished, so everything this rank did with its own version has long been part of it.
    """

    def __init__(self, due: list[Receive], y: Tensor, group: comm.Group) -> None:
        self.due, self.group = deque(due), group
        self.asked, self.leaving = deque[tuple[Callable[[], Any], Tensor]](), deque[Callable[[], Any]]()
        self.num_left = 0
        longest = max((each.place.numel() for each in due if each.aside), default=0)
        self.buffers = deque(y.new_empty(longest) for _ in range(AHEAD if y.device.type == "cpu" else 1))

    def send(self, messages: list[tuple[Tensor, int]]) -> None:
        """Begin to send, and ask for what will be needed next."""
        asking: list[tuple[Tensor, int]] = []
        while self.due and len(self.asked) + len(asking) < len(self.buffers):
            each = self.due.popleft()
            self.buffers.rotate()
            asking.append((self.buffers[0][: each.place.numel()] if each.aside else each.place, each.source))
        waits = comm.start(messages, asking, self.group)
        self.leaving += waits[: len(messages)]
        self.asked += [(wait, into) for wait, (into, _) in zip(waits[len(messages) :], asking, strict=True)]

    def receive(self) -> Tensor:
        """What comes next, once it is there; in a buffer until the one after it is received."""
        if self.due and len(self.asked) < len(self.buffers):
            self.send([])
        wait, tensor = self.asked.popleft()
        wait()
        return tensor

    def wait_for(self, number: int) -> None:
        """Wait until so many messages, of all that were sent, have left."""
        while self.num_left < number:
            self.leaving.popleft()()
            self.num_left += 1
