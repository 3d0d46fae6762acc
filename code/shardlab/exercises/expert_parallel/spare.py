"""Exercise: place experts and spare copies of the hottest on ranks.

`costs.expert_parallel.replicated` places them by a greedy rule; a placement that is as even passes.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from shardlab import comm
from shardlab.costs import expert_parallel as costs

from ..checker import Case, Dependent, Exercise, Finding, describe


@dataclass(frozen=True)
class Given:
    """The tokens of each expert, and the spare slots of each rank."""

    loads: tuple[int, ...]
    spare: int


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return the experts of each rank, or a description of what came instead."""
    answer = function(list(case.given.loads), case.world_size, case.given.spare)
    try:
        return [[operator.index(expert) for expert in experts] for experts in answer]
    except TypeError:
        return describe(answer)


def _greedy(case: Case) -> list[list[int]]:
    return costs.replicated(case.given.loads, case.world_size, case.given.spare)


def _most_of_a_copy(case: Case, placement: list[list[int]]) -> float:
    """Return the tokens of the fullest copy."""
    given: Given = case.given
    held = [expert for experts in placement for expert in experts]
    return max(load / held.count(expert) for expert, load in enumerate(given.loads))


def _fullest(case: Case, placement: list[list[int]]) -> float:
    """Return the tokens of the fullest rank."""
    return max(costs.rank_loads(case.given.loads, placement))


def fills_slots(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for as many experts on each rank as it has slots."""
    (answer,) = observed
    slots = len(case.given.loads) // case.world_size + case.given.spare
    wanted = [slots] * case.world_size
    if isinstance(answer, list) and [len(experts) for experts in answer] == wanted:
        return None
    return Finding(_given(case), f"{case.world_size} lists of {slots} experts", str(answer))


def _is_complete(case: Case, answer: Any) -> bool:
    if not isinstance(answer, list) or any(len(set(row)) < len(row) for row in answer):
        return False
    held = {expert for experts in answer for expert in experts}
    return held == set(range(len(case.given.loads)))


@Dependent
def places_each(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that every expert is placed, and none twice on a rank."""
    (answer,) = observed
    if not isinstance(answer, list) or _is_complete(case, answer):
        return None
    expected = f"each of experts 0 to {len(case.given.loads) - 1}, on a rank at most once"
    return Finding(_given(case), expected, str(answer))


@Dependent
def copies_the_hottest(case: Case, observed: list[Any]) -> Finding | None:
    """Compare the tokens of the fullest copy."""
    return _compare(case, observed[0], _most_of_a_copy, "for a copy")


@Dependent
def is_even(case: Case, observed: list[Any]) -> Finding | None:
    """Compare the tokens of the fullest rank."""
    return _compare(case, observed[0], _fullest, "on a rank")


def _compare(
    case: Case, answer: Any, most_of: Callable[[Case, list[list[int]]], float], where: str
) -> Finding | None:
    if not _is_complete(case, answer):
        return None
    most, right = most_of(case, answer), most_of(case, _greedy(case))
    if most <= right * (1 + 1e-9):
        return None
    return Finding(_given(case), f"at most {right:g} tokens {where}", f"{answer}: {most:g}")


def _given(case: Case) -> str:
    given: Given = case.given
    return f"loads={list(given.loads)}, num_ranks={case.world_size}, spare={given.spare}"


def _case(ranks: int, title: str, spare: int, *loads: int) -> Case:
    return Case(world_size=ranks, title=title, given=Given(loads, spare))


def _drawn(ranks: int, num_experts: int, spare: int, seed: int) -> Case:
    """Draw loads of experts of unequal popularity."""
    random = Random(seed)
    loads = [int(random.expovariate(1 / 50)) for _ in range(num_experts)]
    return _case(ranks, f"{num_experts} experts drawn with seed {seed}", spare, *loads)


EXERCISE = Exercise(
    name="expert_parallel.spare",
    compare="shardlab.costs.expert_parallel.redundant.replicated",
    points=3,
    pure=True,
    cases=[
        _case(1, "one rank", 0, 3, 1),
        _case(2, "no spare slot", 0, 4, 3, 2, 1),
        _case(2, "a hot expert", 1, 9, 2, 2, 1),
        _case(2, "every expert on every rank", 1, 5, 3),
        _case(2, "no tokens", 1, 0, 0, 0, 0),
        _case(4, "an expert with most tokens", 1, 90, 2, 3, 1, 4, 2, 1, 1),
        *(_drawn(4, 8, 1, seed) for seed in range(3)),
        *(_drawn(8, 16, 2, seed) for seed in range(3)),
    ],
    attempt=attempt,
    properties={
        "every rank fills its slots": fills_slots,
        "every expert is placed, on a rank at most once": places_each,
        "spare slots go to the hottest experts": copies_the_hottest,
        "the fullest rank is as light as the rule makes it": is_even,
    },
)
