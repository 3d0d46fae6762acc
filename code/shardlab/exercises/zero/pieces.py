"""Exercise: cut a flat buffer into equal pieces, wherever the boundaries of parameters lie."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding, Judge

Piece = list[tuple[int, int, int]]  # parameter, from, to
SHOWN = 3  # entries of a piece that a report lists

STARTER = '''\
def my_pieces(sizes, rank, world_size):
    """What this rank holds of parameters that lie one after another.

    sizes: how many numbers each parameter has. All ranks hold equally many, the
    last ones filled up with padding. Returns (parameter, begin, end) for every
    parameter that reaches into the piece: 0 <= begin < end <= its size.
    """
    return [(i, 0, size) for i, size in enumerate(sizes)]  # everything: mend it
'''


@dataclass(frozen=True)
class Held:
    """What all ranks hold, or in words what was returned instead."""

    pieces: list[Piece]
    trouble: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Held:
    """The pieces of all ranks of the case."""
    try:
        pieces = [_listed(function(list(case.given), each, case.world_size)) for each in range(case.world_size)]
    except (TypeError, ValueError) as error:
        return Held([], str(error))
    return Held(pieces)


def _listed(piece: Iterable[Any]) -> Piece:
    try:
        return [(operator.index(number), operator.index(begin), operator.index(end)) for number, begin, end in piece]
    except (TypeError, ValueError):
        raise TypeError(f"{piece!r:.60}, a {type(piece).__name__}") from None


def right(case: Case) -> list[Piece]:
    """The pieces, number by number: slow, and obviously so."""
    numbers = [(parameter, place) for parameter, size in enumerate(case.given) for place in range(size)]
    length = -(-len(numbers) // case.world_size)
    found: list[Piece] = []
    for rank in range(case.world_size):
        mine = numbers[rank * length : (rank + 1) * length]
        parameters = dict.fromkeys(parameter for parameter, _ in mine)
        places = {each: [place for parameter, place in mine if parameter == each] for each in parameters}
        found.append([(each, held[0], held[-1] + 1) for each, held in places.items()])
    return found


def are_places(case: Case, seen: list[Any]) -> Finding | None:
    (held,) = seen
    if held.trouble:
        return Finding(_given(case), "(parameter, begin, end), whole numbers", held.trouble)
    for rank, piece in enumerate(held.pieces):
        for number, begin, end in piece:
            if not (0 <= number < len(case.given) and 0 <= begin < end <= case.given[number]):
                return Finding(f"{_given(case)}, rank={rank}", "0 <= begin < end <= size", str((number, begin, end)))
    return None


def judge(wrong: Callable[[Case, list[Piece]], bool], expected: str) -> Judge:
    """Judges the pieces of all ranks together."""

    def judge_pieces(case: Case, seen: list[Any]) -> Finding | None:
        if seen[0].trouble or not wrong(case, seen[0].pieces):
            return None
        told = "; ".join(f"rank {rank}: {_brief(piece)}" for rank, piece in enumerate(seen[0].pieces))
        return Finding(_given(case), expected, told)

    return judge_pieces


def _spans(case: Case, pieces: list[Piece]) -> list[tuple[int, int]]:
    """In the flat buffer, sorted; what is no place counts as nothing."""
    starts = [sum(case.given[:number]) for number in range(len(case.given))]
    known = range(len(case.given))
    return sorted((starts[n] + begin, starts[n] + end) for piece in pieces for n, begin, end in piece if n in known)


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
    return str(piece) if len(piece) <= SHOWN else f"{piece[:SHOWN]} and {len(piece) - SHOWN} more"


EXERCISE = Exercise(
    name="zero.pieces",
    prompt="Say which part of which parameter each rank holds of a flat buffer that all ranks share equally.",
    starter=STARTER,
    hint=(
        "A piece has -(-sum(sizes) // world_size) numbers, rounded up, and begins at rank times that. Walk along the "
        "parameters, and cut each one's span in the buffer with the piece's: max of the begins, min of the ends."
    ),
    points=2,
    pure=True,
    cases=[
        Case(world_size=world_size, title=f"sizes {list(sizes)}", given=sizes)
        for world_size, sizes in [
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
    ],
    attempt=attempt,
    properties={
        "returns places in the parameters": are_places,
        "no number is held twice": judge(_overlap, "every number on one rank only"),
        "no number is left out": judge(_miss, "every number on some rank"),
        "equal pieces, in the order of the ranks": judge(_misplace, "pieces of equal length, padding at the very end"),
    },
)
