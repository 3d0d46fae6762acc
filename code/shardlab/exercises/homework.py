"""A teacher's homework: exercises of the book, changed or not, and exercises of one's own.

    from shardlab.exercises import Case, find, variant

    DUE = "2027-01-15 23:59"  # a day alone lasts until its end

    def exercises(random):
        shard, sizes = find("data_parallel.shard"), random.sample(range(5, 40), 4)
        drawn = [Case(n, f"{size} samples", size) for n, size in enumerate(sizes, start=1)]
        cases = [*shard.cases, *drawn]  # a few drawn ones alone let usual mistakes pass
        return [find("zero.clip"), variant(shard, points=5, cases=cases)]

The function gets a `random.Random` with the seed of the command, so each class can have its own
cases. The file runs in the grader and in the process of what was handed in: draw from nothing
else, so that both have the same cases.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from shardlab.files import given

from . import notebook
from .checker import Case, Exercise

MODULE = "shardlab_homework"  # the name of the file as a module
MOST_RANKS = 8
NAME = re.compile(r"\w+\.\w+")
HINTS = 3  # a nudge, the idea, the way


@dataclass(frozen=True)
class Homework:
    """What a teacher's file asks for, with the cases of a seed."""

    file: Path
    seed: int
    exercises: dict[str, Exercise]  # by name
    due: datetime | None = None


def variant(
    exercise: Exercise,
    *,
    name: str | None = None,
    points: int | None = None,
    cases: Sequence[Case] | None = None,
) -> Exercise:
    """Change an exercise; None leaves what it has.

    name   chapter.exercise; the learner's function is my_exercise, in the starter, too
    cases  each with a `given` of the kind that `exercise.cases` show; sorted by their ranks

    Errors: ValueError for no points, no cases, or ranks that are not 1 to 8; TypeError for what
    is no exercise or no case. Check your own solution first: a case that no function can pass
    fails everybody.
    """
    _need(exercise, Exercise, 'an exercise, such as find("zero.clip")')
    if points is not None and (not isinstance(points, int) or points < 1):
        raise ValueError(f"points must be a whole number from 1 on, and not {points!r}")
    changes: dict[str, Any] = {"name": name, "points": points}
    if cases is not None:
        if not cases:
            raise ValueError(f"{exercise.name} needs a case at least")
        for case in cases:
            _need(case, Case, "a Case")
            if not 1 <= case.world_size <= MOST_RANKS:
                raise ValueError(f"{case}: use 1 to {MOST_RANKS} ranks")
        changes["cases"] = sorted(cases, key=lambda case: case.world_size)
    changed = replace(exercise, **{key: each for key, each in changes.items() if each is not None})
    starter = re.sub(rf"\b{exercise.function}\b", changed.function, exercise.starter)
    return replace(changed, starter=starter)


@given.in_one_line()
def read(file: Path, seed: int) -> Homework:
    """Run a teacher's file, and draw its cases. Errors: ValueError that says what it lacks."""
    try:
        module = notebook.load(file, MODULE)
        drawn = module.exercises(Random(seed))
        listed = [_named(_need(each, Exercise, "an exercise")) for each in drawn]
        due = getattr(module, "DUE", None)
        latest = None if due is None else _end(due)
    except Exception as error:
        raise ValueError(f"{file} is no homework: {notebook.blame(file, error)}") from error
    exercises = {each.name: each for each in listed}
    if len(exercises) < len(listed) or not listed:
        raise ValueError(f"{file} is no homework: it needs exercises, each name once")
    return Homework(file, seed, exercises, latest)


def _end(due: str) -> datetime:
    """Read a moment; a day without an hour ends at midnight. Errors: ValueError."""
    moment = datetime.fromisoformat(due)
    day_alone = len(due) == len("2027-01-15")
    return moment + timedelta(days=1) if day_alone else moment


def find(file: Path, seed: int, name: str) -> Exercise:
    """Return the exercise of this name in a teacher's file. Errors: ValueError that lists all."""
    known = read(file, seed).exercises
    if name not in known:
        raise ValueError(f"{file} has no exercise {name!r}; {given.instead(name, known)}")
    return known[name]


def _named(exercise: Exercise) -> Exercise:
    if not NAME.fullmatch(exercise.name):
        raise ValueError(f"{exercise.name!r} is no name of an exercise; use one like week1.shard")
    if not exercise.prompt or not exercise.starter:
        raise ValueError(f"{exercise.name} needs a prompt and a starter")
    if not isinstance(exercise.hints, tuple) or len(exercise.hints) != HINTS:
        raise ValueError(f"{exercise.name} needs three hints: a nudge, the idea and the way")
    return exercise


def _need(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.60} is not {what}")
    return value
