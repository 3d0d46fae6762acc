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

STARTER = '''\
def my_moves(source, target, nbytes, ranks):
    """Return (verb, mirror, forward, backward) of source -> target along one axis.

    source, target: "I", "R", "P", or "S(h)"; nbytes: of the whole tensor.
    verb: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", or "": nothing.
    mirror: what happens to the gradient, written as "P -> I".
    forward, backward: bytes that a rank sends, with rings: an all-to-all sends each
    other rank its part of the piece.
    """
    return "all_reduce", "P -> I", nbytes, 0  # fix it
'''
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
    prompt=(
        "Say which collective a redistribution needs, what happens to the gradient, and the bytes "
        "in forward and backward, without shardlab.sharding.types."
    ),
    starter=STARTER,
    hints=(
        (
            "What is the state of a gradient if the tensor is R on ranks that each use it for "
            "something else? Start there, and then follow the arrow in backward."
        ),
        (
            "The gradient has states of its own, and takes the arrow in the other direction. So "
            "backward is a redistribution like any other."
        ),
        (
            "The gradient goes from the target to the source, and in both R and P change places: "
            "the gradient of R is P. So backward is a redistribution, too, with a verb and bytes "
            "by the same rules. A ring sends (n - 1)/n of the tensor once in all-gather and "
            "reduce-scatter."
        ),
    ),
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
