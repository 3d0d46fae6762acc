"""Exercises that grade themselves, on real ranks: `check` your function, ask for a `hint`, begin with a `starter`.

`progress` shows which ones you have passed.
"""

import importlib
from typing import Any

from shardlab import learner

from . import checker, record
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
    """Run your function on real ranks, print what holds and what does not, and return the verdict: true or false.

    Your folder remembers an exercise that you have tried or passed; see `progress`.
    """
    report = checker.check(find(name), function)
    print(report)
    record.keep(report)
    return report


def progress(chapter: str = "") -> None:
    """Print what you have passed: chapter by chapter, or each exercise of one chapter.

    Errors: ValueError for an unknown chapter.
    """
    results, _ = record.best(learner.read(record.KIND))
    if chapter and chapter not in CHAPTERS:
        raise ValueError(f"no chapter is called {chapter!r}; there are {', '.join(CHAPTERS)}")
    if chapter:
        print(record.by_exercise(results, of_chapter(chapter)))
    else:
        print(record.by_chapter(results, {each: of_chapter(each) for each in CHAPTERS}))


def hint(name: str) -> None:
    """Print where to look when you are stuck."""
    print(find(name).hint)


def starter(name: str) -> None:
    """Print the function to begin with; it does not pass."""
    print(find(name).starter, end="")
