"""Execute a plan: every rank does its own part of each step, with point-to-point messages only.

Three things make this as fast as a library. Long messages travel in parts, so that a rank adds one
part while the next one arrives. A rank asks for a part before it needs it, so that no sender waits
for the answer. And what arrives is written to where the sum belongs, so that the input need not be
copied first.

Shapes: every buffer and message is flat, [n].
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from shardlab import comm
from shardlab.sharding.deal import deal

from ...exchanges import ADD, Move, Plan

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}
PART_BYTES = 8 * 2**20  # shorter parts overlap more, and wake more threads
RECEIVES_AHEAD = 2  # parts that a rank has asked for and that have not arrived yet


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A message, or a part of a long one, that this rank receives."""

    source: int
    place: Tensor  # where it belongs
    mine: Tensor | None  # what it is combined with; None: it is taken as it is
    sends_before: int  # sends of this rank that must have completed before its place may change
    in_scratch: bool  # whether it arrives in a buffer of its own, because its place is in use


@dataclass(frozen=True)
class Role:
    """What one rank does in a plan, with the tensors that it uses."""

    sends: list[list[comm.Send]]  # of every step
    receives: list[list[Arrival]]  # of every step
    kept: list[slice]  # places that receive nothing and keep the input

    def exchanges(self) -> Iterator[tuple[comm.Send | None, Arrival | None]]:
        """Pair the sends and receives of each step; the longer list pairs with None at its end."""
        for sends, receives in zip(self.sends, self.receives, strict=True):
            yield from zip_longest(sends, receives)


def execute(plan: Plan, x: Tensor, y: Tensor, group: comm.Group, op: str = "sum") -> None:
    """Execute this rank's role in `plan`, from its input `x` to its result `y`.

    x and y: [n], of the same length; y may be x. The number of the lower rank is always the first
    operand, so that every rank gets the same bits (the larger of 0.0 and -0.0 is the first).
    Errors: ValueError for an unknown operation, a plan for another number of ranks, or a length
    that does not divide into equal pieces where the plan needs them.
    """
    _check(plan, y, group, op)
    combine = OPERATIONS[op]
    rank = group.rank()
    role = role_of(plan, rank, x, y)
    transport = _Transport(role, y, group)
    for message, arrival in role.exchanges():
        if message:
            transport.send([message])
        if arrival:
            arrived = transport.receive()
            if arrival.mine is not None:
                transport.wait_for(arrival.sends_before)
                mine = arrival.mine
                pair = (mine, arrived) if rank < arrival.source else (arrived, mine)
                combine(*pair, out=arrival.place)
    transport.wait_for(sum(map(len, role.sends)))
    for place in role.kept:
        y[place] = x[place]


def _check(plan: Plan, y: Tensor, group: comm.Group, op: str) -> None:
    if op not in OPERATIONS:
        raise ValueError(f"unknown operation {op!r}; use one of {', '.join(OPERATIONS)}")
    if plan.num_ranks != group.size():
        raise ValueError(
            f"the plan is for {plan.num_ranks} ranks, the group has {group.size()}; "
            f"make it for {group.size()}"
        )
    moves = [move for step in plan.steps for move in step]
    if y.numel() % plan.num_pieces and any(move.shift for move in moves):
        raise ValueError(
            f"{y.numel()} numbers do not divide into {plan.num_pieces} equal pieces, which a "
            f"{plan.name} needs; pad them to a multiple of {plan.num_pieces}"
        )


# ---- what a rank does in a plan ----------------------------------------------------------------


def role_of(plan: Plan, rank: int, x: Tensor, y: Tensor) -> Role:
    """Return what this rank sends and receives in every step; x and y as in `execute`.

    In a ring of three, rank 0 sends piece 2 of x, then pieces 1, 0 and 2 of y, each of which it has
    received the step before.
    """
    cut = list(deal(y.numel(), plan.num_pieces))
    newest = [x] * plan.num_pieces  # the tensor that has this rank's latest version of each piece
    sent: list[tuple[Tensor, slice]] = []  # all messages so far: the tensor, and where in it
    sends: list[list[comm.Send]] = []
    receives: list[list[Arrival]] = []
    for step in plan.steps:
        sends.append([])  # of each piece, the latest version
        for move in (move for move in step if move.source == rank):
            buffer = newest[move.pieces[0]]
            for place in _places(move.pieces, cut, y):
                sends[-1].append((buffer[place], move.to))
                sent.append((buffer, place))
        receives.append([])  # all into y, which has the latest version from now on
        for move in (move for move in step if move.to == rank):
            mine = newest[move.landing[0]] if move.action == ADD else None
            for place in _places(move.landing, cut, y):
                receives[-1].append(_arrival(move, place, mine, y, sent))
            newest[move.landing.start : move.landing.stop] = [y] * len(move.landing)
    places = [slice(piece.start, piece.stop) for piece in cut]
    kept = [place for place, version in zip(places, newest, strict=True) if version is not y]
    return Role(sends, receives, kept)


def _arrival(
    move: Move, place: slice, mine: Tensor | None, y: Tensor, sent: list[tuple[Tensor, slice]]
) -> Arrival:
    in_use = mine is y
    return Arrival(
        source=move.source,
        place=y[place],
        mine=None if mine is None else mine[place],
        sends_before=_last_from(sent, y, place) if in_use else 0,
        in_scratch=in_use,
    )


def _places(pieces: range, cut: list[range], y: Tensor) -> list[slice]:
    """Return where a message is in the buffer, part by part.

    Both sides know how long it is: an empty message is not sent. Under NCCL a message is one part:
    see `_Transport`.
    """
    begin = cut[pieces[0]].start
    end = cut[pieces[-1]].stop
    size = PART_BYTES // y.element_size() if y.device.type == "cpu" else end - begin
    return [slice(at, min(at + size, end)) for at in range(begin, end, max(1, size))]


def _last_from(sent: list[tuple[Tensor, slice]], y: Tensor, place: slice) -> int:
    """Return the number, from 1, of the last message sent from this place of y; 0 if none was."""
    last = 0
    for number, (buffer, other) in enumerate(sent, start=1):
        if buffer is y and _overlap(place, other):
            last = number
    return last


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)


# ---- messages ----------------------------------------------------------------------------------


class _Transport:
    """The messages of one rank: sends in flight, and receives that it has asked for.

    NCCL pairs sends and receives only within one call of `comm.start_messages`; there a rank asks
    for one message at a time.

    A message that is taken as it is arrives in its place early, perhaps while this rank is still at
    a step before. In the plans here that is safe: such a message is finished, so it already
    contains everything that this rank did with its own version.
    """

    def __init__(self, role: Role, y: Tensor, group: comm.Group) -> None:
        self.group = group
        self.due = deque(arrival for step in role.receives for arrival in step)
        self.asked = deque[tuple[comm.Wait, Tensor]]()
        self.in_flight = deque[comm.Wait]()
        self.num_sent = 0  # sends that have completed
        scratch = [arrival.place.numel() for arrival in self.due if arrival.in_scratch]
        ahead = RECEIVES_AHEAD if y.device.type == "cpu" else 1
        self.buffers = deque(y.new_empty(max(scratch, default=0)) for _ in range(ahead))

    def send(self, messages: list[comm.Send]) -> None:
        """Start to send, and ask for what will be needed next."""
        asking: list[comm.Receive] = []
        while self.due and len(self.asked) + len(asking) < len(self.buffers):
            asking.append(self._ask(self.due.popleft()))
        waits = comm.start_messages(messages, asking, self.group)
        self.in_flight += waits[: len(messages)]
        for wait, (into, _) in zip(waits[len(messages) :], asking, strict=True):
            self.asked.append((wait, into))

    def _ask(self, arrival: Arrival) -> comm.Receive:
        """Return the tensor in which a message arrives, and its source."""
        self.buffers.rotate()
        if arrival.in_scratch:
            return self.buffers[0][: arrival.place.numel()], arrival.source
        return arrival.place, arrival.source

    def receive(self) -> Tensor:
        """Wait for the next message and return it; a buffer is valid until the next `receive`."""
        if self.due and len(self.asked) < len(self.buffers):
            self.send([])
        wait, tensor = self.asked.popleft()
        wait()
        return tensor

    def wait_for(self, count: int) -> None:
        """Wait until the first `count` sends have completed."""
        while self.num_sent < count:
            self.in_flight.popleft()()
            self.num_sent += 1
