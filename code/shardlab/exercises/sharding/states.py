"""Exercise: the state of each line of a program along one axis."""

import copy
from collections.abc import Callable
from typing import Any

from shardlab import comm

from ..checker import Case, Exercise, Finding, Judge, describe
from ..shared import typed

NAMED = "inputs and redistributions end in the state that they name"
KEPT = "a dim that is cut stays cut where it is kept"
SUMMED = "a cut dim that is summed away leaves P"
PARTIAL = "P stays P until it is redistributed"
EQUAL = "what is equal on all ranks stays I or R"


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[str] | str:
    """Return the states of all lines, or a description of what came instead."""
    found = function(copy.deepcopy(case.given))
    states = typed.words(found, len(case.given))
    return describe(found) if states is None else states


def kind(program: typed.Program, number: int) -> str:
    """Return the property that a line belongs to."""
    right = typed.states(program)
    line = program[number]
    if line["operation"] in ("input", "redistribute"):
        return NAMED
    if right[number][0] == "S":
        return KEPT
    if right[number] != "P":
        return EQUAL
    return PARTIAL if "P" in [right[each] for each in line["of"]] else SUMMED


def judge(name: str) -> Judge:
    """Judge the first line that is wrong, if it belongs to this property."""

    def judge_states(case: Case, observed: list[Any]) -> Finding | None:
        right, found = typed.states(case.given), observed[0]
        if isinstance(found, str):
            return Finding(case.title, f"a list of {len(right)} states", found)
        pairs = enumerate(zip(right, found, strict=True))
        wrong = next((number for number, (a, b) in pairs if a != b), None)
        if wrong is None or kind(case.given, wrong) != name:
            return None
        return Finding(typed.show(case.given, wrong), right[wrong], found[wrong])

    return judge_states


EXERCISE = Exercise(
    name="sharding.states",
    compare="shardlab.sharding.types.rules.product",
    points=2,
    pure=True,
    cases=typed.cases(typed.right(seed, 1 + seed % 4) for seed in range(12)),
    attempt=attempt,
    properties={name: judge(name) for name in (NAMED, KEPT, SUMMED, PARTIAL, EQUAL)},
)
