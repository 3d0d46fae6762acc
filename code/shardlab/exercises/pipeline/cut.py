"""Exercise: where to cut a model of unequal layers, under a memory limit."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from shardlab.costs.pipeline import balance
from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding

STARTER = '''\
def my_cut(seconds, nbytes, num_stages, memory):
    """The number of layers of each stage, as a list, or None where no cut fits.

    seconds, nbytes: of each layer. Stages take at least one layer each, in order, of
    `memory` bytes at most. The slowest stage shall be as fast as possible.
    """
    share = len(seconds) // num_stages
    last = len(seconds) - share * (num_stages - 1)
    return [share] * (num_stages - 1) + [last]  # equal numbers of layers: mend it
'''


@dataclass(frozen=True)
class Given:
    """Layers and the memory of a device."""

    seconds: Sequence[int]
    nbytes: Sequence[int]
    memory: int

    def layers(self) -> list[balance.Layer]:
        pairs = zip(self.seconds, self.nbytes, strict=True)
        return [balance.Layer(seconds=seconds, states=nbytes) for seconds, nbytes in pairs]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Layers of each stage, None, or in words what was returned instead."""
    given: Given = case.given
    answer = function(list(given.seconds), list(given.nbytes), case.world_size, given.memory)
    if answer is None:
        return None
    try:
        return [operator.index(count) for count in answer]
    except TypeError:
        return f"{answer!r:.60}, a {type(answer).__name__}"


def _best(case: Case) -> balance.Partition | None:
    try:
        return balance.cut(case.given.layers(), [1] * case.world_size, case.given.memory)
    except ValueError:
        return None


def _measured(case: Case, counts: Any) -> balance.Partition | None:
    """What the answer takes, if it cuts the model at all."""
    whole = isinstance(counts, list) and len(counts) == case.world_size and min(counts) >= 1
    if not whole or sum(counts) != len(case.given.seconds):
        return None
    edges = [0, *accumulate(counts)]
    return balance.measure(case.given.layers(), [range(a, b) for a, b in pairwise(edges)], [1] * case.world_size)


def cuts(case: Case, seen: list[Any]) -> Finding | None:
    if seen[0] is None or _measured(case, seen[0]):
        return None
    expected = f"{case.world_size} numbers of at least 1, {len(case.given.seconds)} together"
    return Finding(_given(case), expected, str(seen[0]))


def fits(case: Case, seen: list[Any]) -> Finding | None:
    found = _measured(case, seen[0])
    if found is None or max(found.nbytes) <= case.given.memory:
        return None
    expected = f"no stage above {case.given.memory} bytes" if _best(case) else "None: no cut fits"
    return Finding(_given(case), expected, f"{seen[0]}: {[int(each) for each in found.nbytes]} bytes")


def does_not_give_up(case: Case, seen: list[Any]) -> Finding | None:
    best = _best(case)
    if seen[0] is not None or best is None:
        return None
    return Finding(_given(case), f"a cut, such as {[len(stage) for stage in best.stages]}", "None")


def is_fastest(case: Case, seen: list[Any]) -> Finding | None:
    found, best = _measured(case, seen[0]), _best(case)
    if found is None or best is None or max(found.seconds) <= max(best.seconds):
        return None
    expected = f"a slowest stage of {max(best.seconds):g} s"
    return Finding(_given(case), expected, f"{seen[0]}: {[int(each) for each in found.seconds]} s")


def _given(case: Case) -> str:
    given: Given = case.given
    layers = f"seconds={list(given.seconds)}, nbytes={list(given.nbytes)}"
    return f"{layers}, num_stages={case.world_size}, memory={given.memory}"


EXERCISE = Exercise(
    name="pipeline.cut",
    prompt="Cut unequal layers into stages: the slowest stage as fast as possible, none beyond its memory.",
    starter=STARTER,
    hint="Let best(n, k) be the slowest stage's time when the first n layers are on k stages. The last of these stages "
    "takes layers i to n, and best(i, k - 1) is known: try every i for which it fits, and remember the best.",
    points=4,
    pure=True,
    cases=[
        Case(world_size=1, title="one stage", given=Given((2, 1), (1, 1), 2)),
        Case(world_size=1, title="one stage, too small", given=Given((2, 1), (1, 1), 1)),
        Case(world_size=2, title="equal layers", given=Given((1, 1, 1, 1), (1, 1, 1, 1), 4)),
        Case(world_size=2, title="a slow last layer", given=Given((1, 1, 1, 1, 4), (1, 1, 1, 1, 1), 5)),
        Case(world_size=2, title="a large first layer", given=Given((1, 1, 1, 1), (3, 1, 1, 1), 3)),
        Case(world_size=3, title="slow layers apart", given=Given((5, 1, 1, 5, 1, 1, 5), (1,) * 7, 9)),
        Case(world_size=3, title="no cut fits", given=Given((1, 1, 1, 1), (2, 2, 2, 2), 3)),
        Case(world_size=4, title="little memory", given=Given((1, 1, 1, 1, 9, 1, 1, 1), (3, 3, 3, 3, 1, 3, 3, 3), 7)),
        Case(world_size=4, title="a greedy cut is not the best", given=Given((4, 2, 4, 2, 4, 2), (1,) * 6, 9)),
    ],
    attempt=attempt,
    properties={
        "every layer is on one stage": cuts,
        "every stage fits": fits,
        "gives up only where no cut fits": does_not_give_up,
        "the slowest stage is as fast as possible": is_fastest,
    },
)
