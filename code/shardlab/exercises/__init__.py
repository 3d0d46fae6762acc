"""Exercises that grade themselves on real ranks.

`starter` prints the function to begin with, `check` grades it, `hint` helps when you are stuck, and
`progress` shows what you have passed. `find`, `variant` and `Case` make a teacher's homework.
"""

import os
import sys

try:
    here = os.getcwd()
except OSError:  # it has been deleted
    here = ""
# `python -m shardlab.exercises` would import a learner's json.py from the current folder.
if sys.argv[:1] == ["-m"] and sys.path[0] == here != os.path.abspath(f"{__file__}/../../.."):
    sys.path.pop(0)

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardlab.files import learner
from shardlab.files.given import instead

from . import attempts, pages, record, untouched
from . import homework as teaching
from .checker import Case, Exercise, Report
from .homework import variant

__all__ = ["CHAPTERS", "Case", "check", "every", "find", "hint", "of_chapter", "progress"]
__all__ += ["starter", "variant"]

LIMITS = ("memory", "compute")
COMMUNICATING = ("collectives", "interconnects", "replay", "placement")
SPLITTING = (
    "data_parallel",
    "zero",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline",
)
TOGETHER = ("sharding", "composition", "trainer_generator", "planner", "operations", "failures")
CHAPTERS = LIMITS + COMMUNICATING + SPLITTING + TOGETHER


def of_chapter(chapter: str) -> tuple[Exercise, ...]:
    """Return the exercises of a chapter, in the order of its page.

    They are imported here, so that a rank does not import other chapters' exercises.
    """
    listed = importlib.import_module(f"{__name__}.{chapter}").EXERCISES
    return tuple(replace(each, **pages.texts(each.name)._asdict()) for each in listed)


def every() -> dict[str, Exercise]:
    """Return all exercises of the book by name."""
    return {each.name: each for chapter in CHAPTERS for each in of_chapter(chapter)}


def find(name: str) -> Exercise:
    """Return the exercise of this name. Errors: ValueError that lists its chapter's, or all."""
    chapter = name.partition(".")[0]
    known = {each.name: each for each in of_chapter(chapter)} if chapter in CHAPTERS else every()
    if name not in known:
        raise ValueError(f"no exercise is called {name!r}; {instead(name, known)}")
    return known[name]


def check(name: str, function: Any, homework: str = "", seed: int = 0) -> Report:
    """Run your function on real ranks, print which properties hold, and return the verdict.

    The verdict is true or false. The current folder keeps a record of what you have tried and
    passed, see `progress`; a starter as it stands is no try, is not run, and gets a line that says
    what to do. homework, seed: a teacher's file and the seed of its cases, which are always run and
    not recorded. Errors: ValueError for an unknown name.
    """
    exercise = teaching.find(Path(homework), seed, name) if homework else find(name)
    if not homework and untouched.is_starter(exercise, function):
        report = untouched.report(exercise)
        print(report.reason)
        return report
    report = attempts.check(exercise, function)
    print(report)
    if not homework:
        record.keep(report)
    return report


def progress(chapter: str = "") -> None:
    """Print what you have passed: chapter by chapter, or each exercise of one chapter.

    Errors: ValueError for an unknown chapter.
    """
    results = record.best(learner.read(record.KIND))
    if chapter and chapter not in CHAPTERS:
        raise ValueError(f"no chapter is called {chapter!r}; {instead(chapter, CHAPTERS)}")
    if chapter:
        print(record.by_exercise(results, of_chapter(chapter)))
    else:
        print(record.by_chapter(results, {each: of_chapter(each) for each in CHAPTERS}))


def hint(name: str, step: int = 1) -> None:
    """Print help: a nudge first, the idea with step 2, and the way with step 3.

    Errors: ValueError for another step, for an unknown name, or for a chapter, with its exercises.
    """
    print(find(name).hint(step, lambda later: f'hint("{name}", {later})'))


def starter(name: str) -> None:
    """Print the function to begin with, which does not pass."""
    print(find(name).starter, end="")
