"""What exercises on messages between two ranks share: inputs of whole numbers, and budgets."""

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor

from shardlab import trace
from shardlab.costs import units

from .. import evidence
from ..checker import Case, Dependent, Finding, on_each_rank
from ..evidence import Seen
from ..tensors import Comparison, Returned
from .steps import RECEIVE, SEND, steps

PAST = {SEND: "sent", RECEIVE: "received"}


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Draw a rank's input, different on every rank; `case.given` is its shape.

    A matrix is transposed, so that its numbers do not lie row after row.
    """
    transposed = evidence.whole_numbers(rank, *case.given[::-1], below=10)
    return {"x": transposed.permute(*reversed(range(transposed.ndim)))}


def comparison(expected: Callable[[list[Tensor], int], Tensor]) -> Comparison:
    """Compare each rank's output with `expected(the tensors of its group, its place in it)`."""

    def reference(case: Case, rank: int) -> evidence.Named:
        members = case.members(rank)
        every = [inputs(case, each)["x"] for each in members]
        return {"output": expected(every, rank - members.start)}

    return Comparison(inputs=inputs, reference=reference)


@Dependent
@on_each_rank
def only_messages(case: Case, rank: int, seen: Seen) -> Finding | None:
    """Ask that no collective of a library does the work."""
    used = {event.op for event in trace.communication(seen.events)}
    others = ", ".join(sorted(used - {SEND, RECEIVE}))
    if not others:
        return None
    advice = "build the collective from messages between two ranks"
    expected = "comm.send, comm.receive and comm.exchange only"
    return Finding(case.title, expected, f"{others} on rank {rank}", advice)


def moves_at_most(op: str, budget: Callable[[int, int], float], words: str) -> Dependent:
    """Ask that no rank sends (or receives) more than `budget(length of x, ranks)` numbers."""

    def most(case: Case) -> float:
        return budget(prod(case.given), len(case.members(0))) * evidence.NUMBER

    def given(case: Case) -> str:
        return f"{prod(case.given) * evidence.NUMBER} bytes on each of {len(case.members(0))} ranks"

    return moves(op, most, words, given)


def moves(
    op: str,
    budget: Callable[[Case], float],
    words: str,
    given: Callable[[Case], str],
    unit: tuple[str, int] = ("bytes", 1),
) -> Dependent:
    """Ask that no rank sends (or receives) more than `budget` bytes, nor the group far less.

    Half of what all ranks but one may send is the least: one may have nothing to send, and others
    need not send what a mask hides. words: what the budget is. unit: its name and its bytes.
    """
    name, size = unit

    @Dependent
    def judge(case: Case, observed: list[Any]) -> Finding | None:
        for members in case.groups():
            moved = [moved_bytes(observed[rank], op) for rank in members]
            most, least = budget(case), budget(case) * (len(members) - 1) / 2
            if max(moved) > most + 0.5:
                expected = f"at most {most / size:g} {name} {PAST[op]} by a rank ({words})"
                rank = members[moved.index(max(moved))]
                got = f"{max(moved) / size:g} {name} {PAST[op]} by rank {rank}"
                return Finding(given(case), expected, got)
            if sum(moved) < least:
                expected = f"at least {least / size:g} {name} {PAST[op]} by all ranks together"
                return Finding(given(case), expected, f"{sum(moved) / size:g} {name}")
        return None

    return judge


def moved_bytes(seen: Seen, op: str) -> int:
    """Add up the bytes of a rank's messages that are sent, or of those that are received."""
    return sum(event.nbytes for event in trace.communication(seen.events) if event.op == op)


def takes_at_most(budget: Callable[[int], int], words: str) -> Dependent:
    """Ask that at most `budget(ranks)` messages have to follow each other, and log2(ranks) do.

    In fewer steps no number can come from one rank to all, nor from all to one.
    """

    @Dependent
    def judge(case: Case, observed: list[Returned]) -> Finding | None:
        for members in case.groups():
            allowed = budget(len(members))
            taken = steps([observed[rank].trace for rank in members])
            least = log2(len(members))
            given, got = units.counted(len(members), "rank"), units.counted(taken, "step")
            if taken > allowed:
                expected = f"at most {units.counted(allowed, 'step')} ({words})"
                return Finding(given, expected, got, "let several ranks send in the same step")
            if taken < least:
                return Finding(given, f"at least {units.counted(least, 'step')}", got)
        return None

    return judge


def log2(ranks: int) -> int:
    """Return the logarithm of the number of ranks to base 2, rounded up."""
    return (ranks - 1).bit_length()
