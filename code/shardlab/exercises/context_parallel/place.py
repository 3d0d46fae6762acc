"""Exercise: place a sequence on ranks, and count the pairs that each computes.

`sharding.sequences.place` does it for any length, `plain.context_parallel.Context` with tensors.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardlab import comm
from shardlab.sharding import sequences

from ..checker import Case, Dependent, Exercise, Finding, describe

SHOWN = 6  # positions of a rank that a report lists


@dataclass(frozen=True)
class Placed:
    """Positions and pairs of each rank, or a description of what was returned instead."""

    positions: list[list[int]]
    pairs: list[int]
    trouble: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Placed:
    """Ask for the positions and pairs of all ranks of the case."""
    length, zig_zag = case.given
    found = Placed([], [])
    for each in range(case.world_size):
        answer = function(length, each, case.world_size, zig_zag)
        try:
            positions, pairs = answer
            found.positions.append([operator.index(position) for position in positions])
            found.pairs.append(operator.index(pairs))
        except (TypeError, ValueError):
            return Placed([], [], describe(answer))
    return found


def right(case: Case) -> list[list[int]]:
    """List the positions of each rank, ascending."""
    length, zig_zag = case.given
    placement = "zig-zag" if zig_zag else "contiguous"
    places = sequences.place(length, case.world_size, placement)
    return [[position for run in runs for position in run] for runs in places]


def are_numbers(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for a list of positions and a number."""
    (placed,) = observed
    if not placed.trouble:
        return None
    return Finding(_given(case), "(positions, pairs), whole numbers", placed.trouble)


@Dependent
def are_on_one_rank(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that every position is on exactly one rank."""
    (placed,) = observed
    held = sorted(position for positions in placed.positions for position in positions)
    if placed.trouble or held == list(range(case.given[0])):
        return None
    return Finding(_given(case), "every position on one rank", _shown(placed.positions))


@Dependent
def are_placed(case: Case, observed: list[Any]) -> Finding | None:
    """Compare the positions of each rank."""
    (placed,) = observed
    if placed.trouble or placed.positions == right(case):
        return None
    return Finding(_given(case), _shown(right(case)), _shown(placed.positions))


@Dependent
def are_counted(case: Case, observed: list[Any]) -> Finding | None:
    """Compare the pairs with what the positions that were returned give, pair by pair."""
    (placed,) = observed
    every = range(case.given[0])
    visible = [
        sum(key <= query for query in positions for key in every) for positions in placed.positions
    ]
    if placed.trouble or placed.pairs == visible:
        return None
    expected = f"pairs {visible} of ranks with {_shown(placed.positions)}"
    return Finding(_given(case), expected, f"pairs {placed.pairs}")


def _given(case: Case) -> str:
    length, zig_zag = case.given
    return f"length={length}, world_size={case.world_size}, zig_zag={zig_zag}"


def _shown(by_rank: list[list[int]]) -> str:
    shown = []
    for rank, positions in enumerate(by_rank):
        more = ", ..." * (len(positions) > SHOWN)
        shown.append(f"rank {rank}: {', '.join(map(str, positions[:SHOWN]))}{more}")
    return "; ".join(shown)


def _case(ranks: int, length: int, zig_zag: bool) -> Case:
    how = "zig-zag" if zig_zag else "contiguous"
    return Case(world_size=ranks, title=f"{length} tokens, {how}", given=(length, zig_zag))


EXERCISE = Exercise(
    name="context_parallel.place",
    compare="shardlab.sharding.sequences.place",
    points=2,
    pure=True,
    cases=[
        _case(1, 2, False),
        _case(1, 2, True),
        _case(2, 4, False),
        _case(2, 4, True),
        _case(2, 12, True),
        _case(3, 12, False),
        _case(3, 12, True),
        _case(4, 16, True),
        _case(8, 64, True),
    ],
    attempt=attempt,
    properties={
        "returns positions and a number of pairs": are_numbers,
        "every position is on one rank": are_on_one_rank,
        "each rank has the parts of its placement": are_placed,
        "the pairs are those that the mask leaves": are_counted,
    },
)
