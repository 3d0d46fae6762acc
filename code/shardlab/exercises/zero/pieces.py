"""Exercise: cut one flat buffer of all parameters into N rows, wherever the parameters begin.

`plain.zero` folds each parameter into rows of its own, and pads each of them.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, describe

Piece = list[tuple[int, int, int]]  # parameter, begin, end
SHOWN = 3  # entries of a piece that a report lists


@dataclass(frozen=True)
class Pieces:
    """The pieces of all ranks, or a description of what was returned instead."""

    pieces: list[Piece]
    trouble: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Pieces:
    """Return the pieces of all ranks of the case."""
    ranks = range(case.world_size)
    try:
        listed = [_listed(function(list(case.given), each, case.world_size)) for each in ranks]
    except (TypeError, ValueError) as error:
        return Pieces([], str(error))
    return Pieces(listed)


def _listed(piece: Iterable[Any]) -> Piece:
    try:
        return [
            (operator.index(number), operator.index(begin), operator.index(end))
            for number, begin, end in piece
        ]
    except (TypeError, ValueError):
        raise TypeError(describe(piece)) from None


def right(case: Case) -> list[Piece]:
    """List the pieces number by number: slow, and plainly right."""
    sizes = enumerate(case.given)
    numbers = [(parameter, place) for parameter, size in sizes for place in range(size)]
    length = -(-len(numbers) // case.world_size)
    found: list[Piece] = []
    for rank in range(case.world_size):
        places: dict[int, list[int]] = {}
        for parameter, place in numbers[rank * length : (rank + 1) * length]:
            places.setdefault(parameter, []).append(place)
        found.append([(parameter, held[0], held[-1] + 1) for parameter, held in places.items()])
    return found


def are_places(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for places that exist in the parameters."""
    (pieces,) = observed
    if pieces.trouble:
        return Finding(_given(case), "(parameter, begin, end), whole numbers", pieces.trouble)
    for rank, piece in enumerate(pieces.pieces):
        for number, begin, end in piece:
            known = 0 <= number < len(case.given)
            if not known or not 0 <= begin < end <= case.given[number]:
                given = f"{_given(case)}, rank={rank}"
                return Finding(given, "0 <= begin < end <= size", str((number, begin, end)))
    return None


def judge(wrong: Callable[[Case, list[Piece]], bool], expected: str) -> Dependent:
    """Judge the pieces of all ranks together."""

    @Dependent
    def judge_pieces(case: Case, observed: list[Any]) -> Finding | None:
        (pieces,) = observed
        if pieces.trouble or not wrong(case, pieces.pieces):
            return None
        shown = [f"rank {rank}: {_brief(piece)}" for rank, piece in enumerate(pieces.pieces)]
        return Finding(_given(case), expected, "; ".join(shown))

    return judge_pieces


def _spans(case: Case, pieces: list[Piece]) -> list[tuple[int, int]]:
    """Return begin and end in the buffer of all pieces, sorted; unknown parameters are dropped."""
    known = range(len(case.given))
    starts = [sum(case.given[:number]) for number in known]
    entries = [entry for piece in pieces for entry in piece if entry[0] in known]
    return sorted((starts[number] + begin, starts[number] + end) for number, begin, end in entries)


def _overlap(case: Case, pieces: list[Piece]) -> bool:
    return any(end > begin for (_, end), (begin, _) in pairwise(_spans(case, pieces)))


def _miss(case: Case, pieces: list[Piece]) -> bool:
    covered = {place for begin, end in _spans(case, pieces) for place in range(begin, end)}
    return not set(range(sum(case.given))) <= covered


def _misplace(case: Case, pieces: list[Piece]) -> bool:
    return [sorted(piece) for piece in pieces] != right(case)


def _given(case: Case) -> str:
    return f"sizes={list(case.given)}, world_size={case.world_size}"


def _brief(piece: Piece) -> str:
    more = f" and {len(piece) - SHOWN} more" if len(piece) > SHOWN else ""
    return f"{piece[:SHOWN]}{more}"


SIZES: list[tuple[int, tuple[int, ...]]] = [
    (1, (3,)),
    (1, (2, 3)),
    (2, (4,)),
    (2, (2, 2)),
    (2, (1, 4)),
    (3, (7, 1)),
    (4, (1, 1)),
    (4, (3, 5, 1, 6)),
    (4, (2, 1, 1, 1, 1, 9)),
]
EXERCISE = Exercise(
    name="zero.pieces",
    compare="shardlab.ranks.zero.flat.Flat",
    points=2,
    pure=True,
    cases=[
        Case(world_size=ranks, title=f"sizes {list(sizes)}", given=sizes) for ranks, sizes in SIZES
    ],
    attempt=attempt,
    properties={
        "returns places in the parameters": are_places,
        "no number is held twice": judge(_overlap, "every number on one rank only"),
        "no number is left out": judge(_miss, "every number on some rank"),
        "equal rows, in the order of the ranks": judge(
            _misplace, "rows of equal length, padding at the very end"
        ),
    },
)
