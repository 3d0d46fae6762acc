"""Exercise: find the line where a sum is missing or doubled, and the redistribution it needs."""

import copy
import operator
from collections.abc import Callable
from random import Random
from typing import Any

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, Judge, describe
from ..shared import typed

Answer = tuple[int, int, str]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Answer | str:
    """Return the answer, or a description of what came instead."""
    found = function(copy.deepcopy(case.given))
    try:
        line, operand, arrow = found
        return operator.index(line), operator.index(operand), str(arrow)
    except (TypeError, ValueError):
        return describe(found)


def judge(problem: Callable[[typed.Program, Answer], tuple[str, str] | None]) -> Judge:
    """Judge an answer; `problem` returns what was expected and what came, or None."""

    def judge_answer(case: Case, observed: list[Any]) -> Finding | None:
        answer = observed[0]
        if isinstance(answer, str):
            return Finding(case.title, "(line, operand, arrow)", answer)
        wrong = problem(case.given, answer)
        return None if wrong is None else Finding(case.title, *wrong)

    return judge_answer


def names_another(program: typed.Program, answer: Answer) -> tuple[str, str] | None:
    """Ask for the first line that is wrong."""
    line = len(typed.states(program))
    return None if answer[0] == line else (typed.show(program, line), f"line {answer[0]}")


def stays_wrong(program: typed.Program, answer: Answer) -> tuple[str, str] | None:
    """Ask for an operand, and for an arrow with which the line itself is right."""
    line, operand, arrow = answer
    if names_another(program, answer):
        return None
    if operand not in program[line]["of"]:
        expected = f"an operand of line {line}: {program[line]['of']}"
        return expected, f"line {operand}"
    if len(typed.states(typed.repaired(program, *answer))) > line + 1:
        return None
    return f"an arrow for {typed.show(program, line)}", f"{arrow} of line {operand}"


def is_wrong_later(program: typed.Program, answer: Answer) -> tuple[str, str] | None:
    """Ask for an arrow with which later lines are right, too."""
    line, operand, arrow = answer
    if names_another(program, answer) or stays_wrong(program, answer):
        return None
    again = typed.repaired(program, *answer)
    reached = len(typed.states(again))
    if reached == len(again):
        return None
    got = f"{arrow} of line {operand}, with which line {reached - 1} is wrong"
    return f"an arrow for line {line} with which the lines behind it are right", got


def cases() -> list[Case]:
    """Draw programs with a mistake, the shortest first."""
    drawn = []
    for seed in range(24):
        wrong = list(typed.mistakes(typed.right(seed, 1 + seed % 4)))
        if wrong:
            drawn.append(Random(seed).choice(wrong))
    return typed.cases(drawn)


EXERCISE = Exercise(
    name="sharding.missing_sum",
    compare="shardlab.sharding.types.repairs.repairs",
    points=3,
    pure=True,
    cases=cases(),
    attempt=attempt,
    properties={
        "names the first line that is wrong": judge(names_another),
        "with the redistribution this line is right": Dependent(judge(stays_wrong)),
        "with the redistribution all later lines are right": Dependent(judge(is_wrong_later)),
    },
)
