"""Exercise: the collective of a redistribution, what happens to the gradient, and the bytes."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from shardlab import comm
from shardlab.sharding.types.redistribution import Redistribution, redistribution, sent_bytes

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge, describe
from ..shared import formulas, typed

ARROWS = (
    *("I -> R", "I -> S(B)", "R -> S(h)", "R -> P", "S(h) -> P", "P -> I", "P -> R"),
    *("P -> S(h)", "S(B) -> I", "S(h) -> R", "S(B) -> S(h)"),
)
DIMS = "B h"
ITEM = 2  # bytes of a number
Given = tuple[str, int, dict[str, int]]  # an arrow, the ranks, the size of each dim


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return the four answers, or a description of what came instead."""
    arrow, ranks, sizes = case.given
    found = function(*arrow.split(" -> "), math.prod(sizes.values()) * ITEM, ranks)
    try:
        verb, mirror, forward, backward = found
    except (TypeError, ValueError):
        return describe(found)
    return verb or "", str(mirror), evidence.number(forward), evidence.number(backward)


def right(given: Given) -> tuple[str, str, float, float]:
    """Return the right answers."""
    arrow, ranks, sizes = given
    change = redistribution(typed.AXIS, arrow)
    before = typed.typed(DIMS.split(), change.source)
    sent = sent_bytes(before, change, sizes, {typed.AXIS: ranks}, ITEM)
    return change.verb, _arrow(change.mirror), *sent


def _arrow(change: Redistribution) -> str:
    return f"{change.source} -> {change.target}"


def judge(part: int) -> Judge:
    """Judge one of the four answers."""

    def judge_part(case: Case, observed: list[Any]) -> Finding | None:
        arrow, ranks, sizes = case.given
        nbytes = math.prod(sizes.values()) * ITEM
        given = f"{arrow}, a tensor of {nbytes} bytes, {ranks} ranks"
        if isinstance(observed[0], str):
            return Finding(given, "(verb, mirror, forward, backward)", observed[0])
        expected, got = right(case.given)[part], observed[0][part]
        if isinstance(expected, float) and isinstance(got, float):
            same = math.isclose(expected, got, rel_tol=formulas.ROUNDING)
        else:
            same = got == expected
        if same:
            return None
        return Finding(given, repr(expected), repr(got))

    return judge_part


def cases() -> Iterator[Case]:
    """Draw each redistribution twice: for two ranks, and for more."""
    random = Random(0)
    several = sorted(random.randint(3, 8) for _ in ARROWS)
    order = random.sample(ARROWS, len(ARROWS))
    twos = [2] * len(ARROWS)
    for arrow, ranks in zip([*ARROWS, *order], [*twos, *several], strict=True):
        sizes = {dim: ranks * random.randint(1, 9) for dim in DIMS.split()}
        yield Case(world_size=ranks, title=arrow, given=(arrow, ranks, sizes))


EXERCISE = Exercise(
    name="sharding.moves",
    compare="shardlab.sharding.types.redistribution.sent_bytes",
    points=2,
    pure=True,
    cases=list(cases()),
    attempt=attempt,
    properties={
        "the collective of forward": judge(0),
        "what happens to the gradient": judge(1),
        "bytes in forward": judge(2),
        "bytes in backward": judge(3),
    },
)
