"""Exercise: the groups of a rank, from the degrees of a layout and the order of its axes."""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from shardlab import comm

from ..checker import Case, Exercise, Finding, Judge, describe

Groups = dict[str, list[int]]


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[Groups | str]:
    """Return what the function finds for every rank of the case."""
    degrees, order = case.given
    return [_plain(function(each, dict(degrees), tuple(order))) for each in range(case.world_size)]


def _plain(found: Any) -> Groups | str:
    """Return plain data, or a description of what came instead."""
    try:
        return {str(axis): [int(rank) for rank in ranks] for axis, ranks in found.items()}
    except (AttributeError, TypeError, ValueError):
        return describe(found)


def right(case: Case) -> list[Groups]:
    """Find the groups by listing all places: slow, and plainly right."""
    degrees, order = case.given
    places = [place[::-1] for place in product(*(range(degrees[axis]) for axis in reversed(order)))]
    found: list[Groups] = []
    for mine in places:
        found.append({})
        for i, axis in enumerate(order):
            alike = [mine[:i] + mine[i + 1 :] == each[:i] + each[i + 1 :] for each in places]
            found[-1][axis] = [rank for rank, same in enumerate(alike) if same]
    return found


def judge(
    wrong: Callable[[Case, int, Groups], bool], expected: Callable[[Case, int], str]
) -> Judge:
    """Judge the groups of each rank."""

    def judge_ranks(case: Case, observed: list[Any]) -> Finding | None:
        degrees, order = case.given
        for rank, found in enumerate(observed[0]):
            if isinstance(found, str) or wrong(case, rank, found):
                given = f"rank={rank}, degrees={degrees}, order={order}"
                return Finding(given, expected(case, rank), str(found))
        return None

    return judge_ranks


def _sizes_wrong(case: Case, rank: int, found: Groups) -> bool:
    degrees: dict[str, int] = case.given[0]
    return {axis: len(each) for axis, each in found.items()} != degrees


def _show_right(case: Case, rank: int) -> str:
    return str(right(case)[rank])


def _case(title: str, order: tuple[str, ...], **degrees: int) -> Case:
    return Case(world_size=prod(degrees.values()), title=title, given=(degrees, order))


MEGATRON = ("tp", "dp", "pp")
LLAMA = ("tp", "pp", "dp")
LAST = ("pp", "dp", "tp")

EXERCISE = Exercise(
    name="composition.groups",
    compare="shardlab.sharding.layout.groups",
    points=2,
    pure=True,
    cases=[
        _case("one axis of two", MEGATRON, tp=2, dp=1, pp=1),
        _case("two axes, tp first", MEGATRON, tp=2, dp=2, pp=1),
        _case("two axes, tp last", LAST, tp=2, dp=2, pp=1),
        _case("unequal degrees", LLAMA, tp=2, dp=3, pp=1),
        _case("three axes", MEGATRON, tp=2, dp=2, pp=2),
        _case("three unequal axes", LLAMA, tp=2, dp=3, pp=4),
        _case("three unequal axes, tp last", LAST, tp=2, dp=3, pp=4),
    ],
    attempt=attempt,
    properties={
        "every group has as many ranks as its axis": judge(
            _sizes_wrong, lambda case, rank: f"as many ranks as degrees says: {case.given[0]}"
        ),
        "a rank is in its own groups": judge(
            lambda case, rank, found: any(rank not in each for each in found.values()),
            lambda case, rank: f"{rank} in every group",
        ),
        "groups are the ranks that differ along one axis only": judge(
            lambda case, rank, found: found != right(case)[rank], _show_right
        ),
    },
)
