"""Exercise: the bytes of a safetensors file in which a rank's box of a tensor lies."""

import operator
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from shardlab import comm
from shardlab.costs import units

from ..checker import Case, Exercise, Finding, Judge, describe, on_each_rank

Ranges = list[tuple[int, int]]
LENGTH = 8  # bytes before the header, which say how long it is
SHOWN = 3  # ranges that a report lists


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Ranges | str:
    """Return the ranges, or a description of what came instead."""
    header, tensor, offsets, sizes = case.given
    own = tensor | {name: list(tensor[name]) for name in ("shape", "data_offsets")}
    found = function(header, own, list(offsets), list(sizes))
    try:
        return [(operator.index(begin), operator.index(end)) for begin, end in found]
    except (TypeError, ValueError):
        return describe(found)


def right(case: Case) -> Ranges:
    """List the places of all numbers of the box, and join those that follow one another."""
    header, tensor, offsets, sizes = case.given
    begin, end = tensor["data_offsets"]
    columns = prod(tensor["shape"][1:])
    width = (end - begin) // prod(tensor["shape"])
    first, count = (offsets[1], sizes[1]) if sizes[1:] else (0, 1)
    joined: Ranges = []
    for row in range(offsets[0], offsets[0] + sizes[0]):
        for column in range(first, first + count):
            at = LENGTH + header + begin + (row * columns + column) * width
            if joined and joined[-1][1] == at:
                at = joined.pop()[0]
            joined.append((at, LENGTH + header + begin + (row * columns + column + 1) * width))
    return joined


def _bytes(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {byte for begin, end in ranges for byte in range(begin, end)}


def _of_a_list(judge: Callable[[Case, int, Any], Finding | None]) -> Judge:
    """Make a judge of all ranks that refuses what is no list of ranges."""

    @on_each_rank
    def judge_list(case: Case, rank: int, found: Any) -> Finding | None:
        return _no_list(case, found) if isinstance(found, str) else judge(case, rank, found)

    return judge_list


@_of_a_list
def nothing_lacks(case: Case, rank: int, found: Any) -> Finding | None:
    """Ask for every byte of the box."""
    lacks = sorted(_bytes(right(case)) - _bytes(found))
    if not lacks:
        return None
    return Finding(_given(case), f"byte {lacks[0]} is read", _brief(found))


@_of_a_list
def nothing_else(case: Case, rank: int, found: Any) -> Finding | None:
    """Ask for no byte of another rank, or of the header."""
    more = _bytes(found) - _bytes(right(case))
    if not more:
        return None
    return Finding(_given(case), f"byte {min(more)} is not read", _brief(found))


@_of_a_list
def as_few(case: Case, rank: int, found: Any) -> Finding | None:
    """Ask for one range where bytes follow one another: each is a request to the disk."""
    ends = [end for _, end in found]
    if all(end < begin for end, (begin, _) in zip(ends, found[1:], strict=False)):
        return None
    return Finding(_given(case), "ascending ranges with gaps between them", _brief(found))


def _no_list(case: Case, found: str) -> Finding:
    return Finding(_given(case), "a list of pairs (begin, end)", found)


def _given(case: Case) -> str:
    header, tensor, offsets, sizes = case.given
    return f"header_length={header}, tensor={tensor}, offsets={offsets}, sizes={sizes}"


def _brief(found: Ranges) -> str:
    more = " and more" if len(found) > SHOWN else ""
    return f"{units.counted(len(found), 'range')}: {found[:SHOWN]}{more}"


def _case(
    title: str, shape: list[int], offsets: list[int], sizes: list[int],
    header: int = 120, begin: int = 0, dtype: str = "F32",
) -> Case:  # fmt: skip
    end = begin + prod(shape) * {"BF16": 2, "F32": 4, "F64": 8}[dtype]
    tensor = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return Case(world_size=1, title=title, given=(header, tensor, offsets, sizes))


EXERCISE = Exercise(
    name="composition.byte_ranges",
    compare="shardlab.ranks.checkpoint.hugging_face.files.runs",
    points=2,
    pure=True,
    cases=[
        _case("a whole vector", [6], [0], [6]),
        _case("a whole matrix", [4, 6], [0, 0], [4, 6]),
        _case("half a vector", [6], [3], [3]),
        _case("rows of a matrix: rank 3 of 4", [8, 6], [6, 0], [2, 6]),
        _case("columns of a matrix: rank 3 of 4", [3, 8], [0, 6], [3, 2]),
        _case("the second tensor of a file", [4, 6], [2, 0], [2, 6], begin=96),
        _case("two bytes a number", [3, 8], [0, 6], [3, 2], dtype="BF16"),
        _case("some columns of some rows", [8, 12], [4, 3], [2, 3], 4_080, 1_024, "F64"),
    ],
    attempt=attempt,
    properties={
        "every byte of the box is read": nothing_lacks,
        "no other byte is read": nothing_else,
        "bytes that follow one another are one range": as_few,
    },
)
