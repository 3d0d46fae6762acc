"""Exercises that grade themselves, on real ranks: `check` your function, ask for a `hint`, begin with a `starter`."""

import importlib
from typing import Any

from . import checker
from .checker import Exercise, Report

LIMITS, TALKING = ("memory", "compute"), ("collectives", "interconnects")
SPLITTING, TOGETHER = ("data_parallel", "zero", "tensor_parallel", "pipeline"), ("composition", "planner", "failures")
CHAPTERS = LIMITS + TALKING + SPLITTING + TOGETHER


def of_chapter(chapter: str) -> tuple[Exercise, ...]:
    """Its exercises, in the order of its page; imported only now, so that a rank imports no other chapter's."""
    exercises: tuple[Exercise, ...] = importlib.import_module(f"{__name__}.{chapter}").EXERCISES
    return exercises


def every() -> dict[str, Exercise]:
    """All exercises of the book by name."""
    return {each.name: each for chapter in CHAPTERS for each in of_chapter(chapter)}


def find(name: str) -> Exercise:
    """The exercise of that name. Errors: ValueError, listing those there are."""
    chapter = name.partition(".")[0]
    for each in of_chapter(chapter) if chapter in CHAPTERS else ():
        if each.name == name:
            return each
    raise ValueError(f"no exercise is called {name!r}; there are {', '.join(every())}")


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
