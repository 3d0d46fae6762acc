"""Exercise: choose which GPU of a trainer becomes which rank of a generator, so that bytes stay."""

import operator
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

from shardlab import comm
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import Place

from ..checker import Case, Dependent, Exercise, Finding, describe
from ..shared.boxes import Ranks, engines, numbers


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[int] | str:
    """Return the generator's rank on each GPU, or a description of what came instead."""
    have, want, element = case.given
    found = function([[*each] for each in have], [[*each] for each in want], dict(element))
    try:
        return [operator.index(each) for each in found]
    except TypeError:
        return describe(found)


def bytes_that_stay(have: Ranks, want: Ranks, element: dict[str, int]) -> list[list[int]]:
    """Count what each GPU has of each rank of the generator: [GPUs, ranks]."""
    wanted = [numbers(places) for places in want]
    return [[sum(element[n] for n, _ in numbers(held) & each) for each in wanted] for held in have]


def are_all_placed(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for each rank of the generator once."""
    ranks = list(range(case.world_size))
    if not isinstance(observed[0], str) and sorted(observed[0]) == ranks:
        return None
    return Finding(case.title, f"each of {ranks} on one GPU", str(observed[0]))


@Dependent
def most_stay(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for as many bytes as the best of all orders leaves."""
    kept, found = bytes_that_stay(*case.given), observed[0]

    def staying(order: Sequence[int]) -> int:
        return sum(row[rank] for row, rank in zip(kept, order, strict=True))

    best = max(permutations(range(len(kept))), key=staying)
    if isinstance(found, str) or sorted(found) != sorted(best) or staying(found) == staying(best):
        return None
    expected = f"{staying(best)} bytes stay, as with {list(best)}"
    return Finding(
        f"{case.title}; bytes by GPU and rank: {kept}", expected, f"{found}: {staying(found)} bytes"
    )


def _case(title: str, have: Ranks, want: Ranks, **element: int) -> Case:
    every = {name: 2 for places in have for name, _ in places} | element
    return Case(world_size=len(have), title=title, given=(have, want, every))


def _rows(**lengths: tuple[int, int]) -> list[Place]:
    """Make boxes of vectors: from, to."""
    return [(name, (range(*ends),)) for name, ends in lengths.items()]


def _matrix(**sizes: tuple[int, int, int]) -> list[Place]:
    """Make boxes of matrices: from row, to row, columns."""
    boxes = {
        name: (range(begin, end), range(columns)) for name, (begin, end, columns) in sizes.items()
    }
    return [*boxes.items()]


EIGHT = engines(Layout(tp=2, pp=2, dp=2), Layout(tp=2, dp=4), apart=False)
EXERCISE = Exercise(
    name="trainer_generator.place",
    points=3,
    pure=True,
    cases=[
        _case("one GPU", *engines(Layout(), Layout(), apart=False)),
        _case(
            "a rank that has most is needed elsewhere",
            [_rows(a=(0, 19)), _rows(a=(0, 9))],
            [_rows(a=(0, 10)), _rows(a=(10, 19))],
        ),
        _case(
            "four bytes against many numbers",
            [_rows(a=(0, 6), b=(0, 4)), _rows(a=(6, 12), b=(4, 8))],
            [_rows(a=(6, 12), b=(0, 4)), _rows(a=(0, 6), b=(4, 8))],
            b=4,
        ),
        _case(
            "a large parameter against two small ones",
            [_rows(a=(0, 8), b=(0, 1), c=(0, 1)), _rows(a=(8, 16), b=(1, 2), c=(1, 2))],
            [_rows(a=(0, 8), b=(1, 2), c=(1, 2)), _rows(a=(8, 16), b=(0, 1), c=(0, 1))],
        ),
        _case(
            "many short rows against a long one",
            [_matrix(a=(0, 4, 1), b=(0, 1, 16)), _matrix(a=(4, 8, 1), b=(1, 2, 16))],
            [_matrix(a=(0, 4, 1), b=(1, 2, 16)), _matrix(a=(4, 8, 1), b=(0, 1, 16))],
        ),
        _case("tp 2, pp 2, dp 2 is dp 4, tp 2, numbered from the end", EIGHT[0], EIGHT[1][::-1]),
    ],
    attempt=attempt,
    properties={
        "every rank of the generator has a GPU of its own": are_all_placed,
        "as many bytes stay as can": most_stay,
    },
)
