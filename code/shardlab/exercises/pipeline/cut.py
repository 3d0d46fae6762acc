"""Exercise: where to cut a model of unequal layers, under a memory limit.

`plain.pipeline.Stage` gives every stage the same number of blocks.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from shardlab import comm
from shardlab.costs.pipeline import balance

from ..checker import Case, Dependent, Exercise, Finding, describe


@dataclass(frozen=True)
class Given:
    """Layers, and the memory of a device."""

    seconds: Sequence[int]
    nbytes: Sequence[int]
    memory: int

    def layers(self) -> list[balance.Layer]:
        """Return the layers as `balance` knows them."""
        pairs = zip(self.seconds, self.nbytes, strict=True)
        return [balance.Layer(seconds=seconds, states=nbytes) for seconds, nbytes in pairs]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return the layers of each stage, None, or a description of what came instead."""
    given: Given = case.given
    layers = list(given.seconds), list(given.nbytes)
    answer = function(*layers, case.world_size, given.memory)
    if answer is None:
        return None
    try:
        return [operator.index(count) for count in answer]
    except TypeError:
        return describe(answer)


def _best(case: Case) -> balance.Partition | None:
    """Return the best cut, or None if no cut fits."""
    try:
        return balance.split(case.given.layers(), [1] * case.world_size, case.given.memory)
    except ValueError:
        return None


def _measured(case: Case, counts: Any) -> balance.Partition | None:
    """Measure the answer; None if it does not cut the model."""
    is_cut = isinstance(counts, list) and len(counts) == case.world_size and min(counts) >= 1
    if not is_cut or sum(counts) != len(case.given.seconds):
        return None
    stages = [range(start, end) for start, end in pairwise([0, *accumulate(counts)])]
    return balance.measure(case.given.layers(), stages, [1] * case.world_size)


def cuts(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that every layer is on one stage, and every stage has one."""
    (answer,) = observed
    if answer is None or _measured(case, answer):
        return None
    layers = len(case.given.seconds)
    expected = f"{case.world_size} numbers of at least 1, {layers} together"
    return Finding(_given(case), expected, str(answer))


@Dependent
def fits(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that no stage exceeds the memory."""
    (answer,) = observed
    found = _measured(case, answer)
    if found is None or max(found.nbytes) <= case.given.memory:
        return None
    expected = f"no stage above {case.given.memory} bytes" if _best(case) else "None: no cut fits"
    taken = [int(each) for each in found.nbytes]
    return Finding(_given(case), expected, f"{answer}: {taken} bytes")


def does_not_give_up(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for a cut wherever one fits."""
    best = _best(case)
    if observed[0] is not None or best is None:
        return None
    example = [len(stage) for stage in best.stages]
    return Finding(_given(case), f"a cut, such as {example}", "None")


@Dependent
def is_fastest(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that no cut that fits has a faster slowest stage."""
    (answer,) = observed
    found = _measured(case, answer)
    best = _best(case)
    if found is None or best is None or max(found.seconds) <= max(best.seconds):
        return None
    expected = f"a slowest stage of {max(best.seconds):g} s"
    taken = [int(each) for each in found.seconds]
    return Finding(_given(case), expected, f"{answer}: {taken} s")


def _given(case: Case) -> str:
    given: Given = case.given
    layers = f"seconds={list(given.seconds)}, nbytes={list(given.nbytes)}"
    return f"{layers}, num_stages={case.world_size}, memory={given.memory}"


def _case(
    stages: int, title: str, seconds: Sequence[int], nbytes: Sequence[int], memory: int
) -> Case:
    return Case(world_size=stages, title=title, given=Given(seconds, nbytes, memory))


EXERCISE = Exercise(
    name="pipeline.cut",
    compare="shardlab.costs.pipeline.balance.split",
    points=4,
    pure=True,
    cases=[
        _case(1, "one stage", (2, 1), (1, 1), 2),
        _case(1, "one stage, too small", (2, 1), (1, 1), 1),
        _case(2, "equal layers", (1, 1, 1, 1), (1, 1, 1, 1), 4),
        _case(2, "a slow last layer", (1, 1, 1, 1, 4), (1, 1, 1, 1, 1), 5),
        _case(2, "a large first layer", (1, 1, 1, 1), (3, 1, 1, 1), 3),
        _case(3, "slow layers apart", (5, 1, 1, 5, 1, 1, 5), (1,) * 7, 9),
        _case(3, "one slow layer", (5, 1, 1), (1,) * 3, 9),
        _case(3, "fastest, but not the most even", (1, 5, 2, 3), (1,) * 4, 9),
        _case(3, "no cut fits", (1, 1, 1, 1), (2, 2, 2, 2), 3),
        _case(4, "little memory", (1, 1, 1, 1, 9, 1, 1, 1), (3, 3, 3, 3, 1, 3, 3, 3), 7),
        _case(4, "a greedy cut is not the best", (4, 2, 4, 2, 4, 2), (1,) * 6, 9),
    ],
    attempt=attempt,
    properties={
        "every layer is on one stage": cuts,
        "every stage fits": fits,
        "gives up only where no cut fits": does_not_give_up,
        "the slowest stage is as fast as possible": is_fastest,
    },
)
