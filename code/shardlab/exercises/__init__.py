"""Exercises that grade themselves, on real ranks: `check` your function, ask for a `hint`, begin with a `starter`."""

from typing import Any

from . import (
    checker,
    collectives,
    composition,
    compute,
    data_parallel,
    failures,
    interconnects,
    memory,
    pipeline,
    planner,
    tensor_parallel,
    zero,
)
from .checker import Exercise, Report

LIMITS, TALKING = (memory, compute), (collectives, interconnects)
SPLITTING, TOGETHER = (data_parallel, zero, tensor_parallel, pipeline), (composition, planner, failures)
CHAPTERS = LIMITS + TALKING + SPLITTING + TOGETHER
EXERCISES: dict[str, Exercise] = {each.name: each for chapter in CHAPTERS for each in chapter.EXERCISES}


def find(name: str) -> Exercise:
    """The exercise of that name. Errors: ValueError, listing those there are."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]


def check(name: str, function: Any) -> Report:
    """Run your function on real ranks, print what holds and what does not, and return the verdict: true or false."""
    report = checker.check(find(name), function)
    print(report)
    return report


def hint(name: str) -> None:
    """Print where to look when you are stuck."""
    print(find(name).hint)


def starter(name: str) -> None:
    """Print the function to begin with; it does not pass."""
    print(find(name).starter, end="")
