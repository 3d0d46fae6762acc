"""What these exercises share: whole numbers as input, messages between two ranks, and budgets for them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from shardlab import trace
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Finding, Judge
from .steps import RECEIVE, SEND, steps

ELEMENT = 8  # bytes of a number in float64
PAST = {SEND: "sent", RECEIVE: "received"}


@dataclass(frozen=True)
class Seen:
    """What a rank has afterwards."""

    result: Any
    same: bool  # the input is what it was
    program: list[trace.Event]


def tensor(case: Case, rank: int) -> Tensor:
    """What a rank brings: other whole numbers on every rank; `case.given` is the shape."""
    random = torch.Generator().manual_seed(rank)
    return torch.randint(1, 10, case.given, generator=random).double()


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function work on this rank's tensor, and see what it sends."""
    x = tensor(case, rank)
    with ledger.Ledger() as book:
        result = function(x, group)
    kept = result.detach().clone() if isinstance(result, Tensor) else f"{result!r:.60}, a {type(result).__name__}"
    return Seen(kept, torch.equal(x, tensor(case, rank)), book.program)


def groups(case: Case) -> Iterator[range]:
    """The groups in which ranks talk."""
    size = len(case.members(0))
    return (case.members(first) for first in range(0, case.world_size, size))


def returns(expected: Callable[[list[Tensor], int], Tensor]) -> Judge:
    """Every rank gets what follows from the tensors of its group and its place in it."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        for members in groups(case):
            inputs = [tensor(case, rank) for rank in members]
            for place, rank in enumerate(members):
                right, got = expected(inputs, place), seen[rank].result
                told = got if isinstance(got, str) else evidence.show(got)
                wrong = isinstance(got, str) or evidence.first_difference(right, got) is not None
                if not wrong:
                    continue
                if not isinstance(got, str) and got.shape != right.shape:
                    told = f"{told} of shape {list(got.shape)}"
                given = ", ".join(f"{evidence.show(x)} on rank {each}" for x, each in zip(inputs, members, strict=True))
                return Finding(f"x = {given}", evidence.show(right), f"{told} on rank {rank}")
        return None

    return judge


def leave_input(case: Case, seen: list[Any]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if not mine.same:
            return Finding("x, other numbers on every rank", "the same x afterwards", f"another x on rank {rank}")
    return None


def only_messages(case: Case, seen: list[Any]) -> Finding | None:
    """No collective of a library does the work."""
    for rank, mine in enumerate(seen):
        others = {event.op for event in trace.communication(mine.program)} - {SEND, RECEIVE}
        if others:
            return Finding(case.title, "send, receive and exchange only", f"{', '.join(sorted(others))} on rank {rank}")
    return None


def moves_at_most(op: str, budget: Callable[[int, int], float], words: str) -> Judge:
    """No rank sends (or receives) more than `budget(number of numbers, ranks)` numbers."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        allowed = budget(prod(case.given), len(case.members(0))) * ELEMENT
        for rank, mine in enumerate(seen):
            moved = sum(event.nbytes for event in trace.communication(mine.program) if event.op == op)
            if moved > allowed + 0.5:
                given = f"{prod(case.given) * ELEMENT} bytes on each of {len(case.members(0))} ranks"
                told = f"at most {allowed:.0f} bytes {PAST[op]} by a rank ({words})"
                return Finding(given, told, f"{moved} bytes {PAST[op]} by rank {rank}")
        return None

    return judge


def takes_at_most(budget: Callable[[int], int], words: str) -> Judge:
    """No more than `budget(ranks)` messages follow each other."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        for members in groups(case):
            allowed, taken = budget(len(members)), steps([seen[rank].program for rank in members])
            if taken > allowed:
                return Finding(f"{len(members)} ranks", f"at most {allowed} steps ({words})", f"{taken} steps")
        return None

    return judge


def log2(ranks: int) -> int:
    """The logarithm of the number of ranks to base 2, rounded up."""
    return (ranks - 1).bit_length()
