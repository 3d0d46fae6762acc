"""Exercise: agree on who goes on after a failure, where ranks differ on who is there."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from shardlab import comm, trace
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank

BUDGET = 8  # bytes that a rank gives for each rank of the group
Views = Sequence[str]  # of each rank, "1" where it sees a rank


def survivors(views: Views) -> list[int]:
    """Return the largest set, more than half of the ranks, in which all see one another."""
    ranks = range(len(views))
    for size in range(len(views), len(views) // 2, -1):
        for members in combinations(ranks, size):
            if all(views[one][other] == "1" for one in members for other in members):
                return [*members]
    return []


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> evidence.Seen:
    """Ask each rank with its own view, the dead ones, too: what they say must not matter."""
    view = [letter == "1" for letter in case.given[group.rank()]]
    with ledger.Ledger() as book:
        found = function(group, view)
    return evidence.Seen(result=_plain(found), events=book.events)


def _plain(found: Any) -> Any:
    try:
        members, number = found
        return [int(each) for each in members], None if number is None else int(number)
    except (TypeError, ValueError):
        return describe(found)


@on_each_rank
def is_answer(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for a list and a number, or None, and for the largest set as that list."""
    right = survivors(case.given)
    if isinstance(seen.result, tuple) and seen.result[0] == right:
        return None
    got = seen.result[0] if isinstance(seen.result, tuple) else seen.result
    return Finding(_given(case), f"{right} on every rank", f"{got} on rank {rank}")


def agrees(case: Case, observed: list[evidence.Seen]) -> Finding | None:
    """Ask that all ranks have the same list, right or wrong."""
    lists = [seen.result[0] for seen in observed if isinstance(seen.result, tuple)]
    if len(lists) == len(observed) and all(each == lists[0] for each in lists):
        return None
    shown = [f"{seen.result} on rank {rank}" for rank, seen in enumerate(observed)]
    return Finding(_given(case), "one list on all ranks", ", ".join(shown))


@on_each_rank
def has_number(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for the rank's place in the list that it has returned, or None."""
    if not isinstance(seen.result, tuple):
        return Finding(_given(case), "a list and a number", f"{seen.result} on rank {rank}")
    members, number = seen.result
    right = members.index(rank) if rank in members else None
    if number == right:
        return None
    expected = f"{members}, {right}"
    return Finding(_given(case), expected, f"{members}, {number} on rank {rank}")


@Dependent
@on_each_rank
def sends_little(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for one all-gather; a rank without peers needs none."""
    ranks = len(case.members(rank))
    if ranks == 1:
        return None
    most = BUDGET * ranks * (ranks - 1)  # bytes that a ring sends
    events = trace.communication(seen.events)
    sent = sum(map(trace.wire_bytes, events))
    if [event.op for event in events] == ["all_gather"] and sent <= most:
        return None
    expected = f"one all_gather, and at most {most} bytes sent by a rank"
    return Finding(_given(case), expected, evidence.show_sent(rank, events))


def _given(case: Case) -> str:
    seen = [[str(rank) for rank, one in enumerate(view) if one == "1"] for view in case.given]
    shown = [f"rank {rank} sees {', '.join(each) or 'none'}" for rank, each in enumerate(seen)]
    return "; ".join(shown)


EXERCISE = Exercise(
    name="operations.survivors",
    points=4,
    cases=[
        Case(1, "all there", ("1",)),
        Case(2, "all there", ("11", "11")),
        Case(2, "one sees only itself", ("11", "01")),
        Case(3, "rank 0 is gone", ("100", "011", "011")),
        Case(3, "rank 0 is gone, and believes to see all", ("111", "011", "011")),
        Case(3, "rank 1 hears rank 2, which does not hear it", ("111", "111", "101")),
        Case(4, "rank 2 is gone, and one has not noticed", ("1101", "1111", "0010", "1101")),
        Case(4, "rank 3 sees nobody", ("1111", "1111", "1111", "0001")),
        Case(4, "two halves", ("1100", "1100", "0011", "0011")),
        Case(4, "two links are cut", ("1011", "0111", "1110", "1101")),
        Case(4, "one link is cut", ("1111", "1111", "1110", "1101")),
    ],
    attempt=attempt,
    properties={
        "all ranks have the same list": agrees,
        "the list is the largest set that all see one another": is_answer,
        "the new number of a rank is its place in its list": has_number,
        "one all-gather of at most 8 bytes for each rank": sends_little,
    },
)
