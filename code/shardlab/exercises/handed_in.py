"""Check what was handed in: the verdicts as text for a person, or as JSON for a program."""

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

from shardlab.files.given import shown

from . import grader, record, untouched
from .checker import FAILED, PASSED, UNGRADED, Exercise
from .grader import Broken, Unusable, Verdict
from .homework import Homework

ALL_PASS, SOME_FAIL, NOT_GRADED = 0, 1, 2  # exit status


def check(
    exercises: list[Exercise], file: Path, homework: Homework | None, *, as_json: bool
) -> int:
    """Check a file's functions for these exercises, and print what is found.

    homework: whose exercises these are, if not the book's; the record is then left alone. Return
    0 if all pass, 1 if one fails, and 2 if the grader itself failed: then no points are written,
    because a right answer may be among those that were not graded.
    """
    show = _as_data if as_json else _as_text
    return show(exercises, file, homework)


def hint(exercise: Exercise, homework: Homework | None, step: int = 1) -> str:
    """Return the command that prints a step of the help."""
    options = f" --with {quote(str(homework.file))}" if homework else ""
    options += f" --step {step}" if step > 1 else ""
    return f"python -m shardlab.exercises hint {exercise.name}{options}"


def _as_text(exercises: list[Exercise], file: Path, homework: Homework | None) -> int:
    verdicts = []
    try:
        for verdict in _graded(exercises, file, homework=homework):
            verdicts.append(verdict)
            help = hint(verdict.exercise, homework)
            text = verdict.reason if verdict.report is None else verdict.report.text(help)
            print(f"{shown(text)}\n")
    except Unusable as error:
        names = ", ".join(exercise.name for exercise in exercises)
        trouble = f"{names}: {FAILED}, {file} cannot be run: {error}"
        print(shown(trouble), file=sys.stderr)
        return SOME_FAIL
    except Broken as error:
        print(f"{UNGRADED}: {shown(str(error))}", file=sys.stderr)
        return NOT_GRADED
    if any(verdict.status == UNGRADED for verdict in verdicts):
        print(f"no points: some exercises are {UNGRADED}", file=sys.stderr)
        return NOT_GRADED
    points = sum(verdict.points for verdict in verdicts)
    total = sum(exercise.points for exercise in exercises)
    print(f"{points} of {total} points")
    return ALL_PASS if points == total else SOME_FAIL


def _as_data(exercises: list[Exercise], file: Path, homework: Homework | None) -> int:
    """Print one object on standard output; what the file prints goes to standard error."""
    verdicts: list[Verdict] = []
    trouble = (FAILED, "")
    try:
        verdicts.extend(_graded(exercises, file, printed=sys.stderr, homework=homework))
    except Unusable as error:
        trouble = FAILED, f"{file} cannot be run: {error}"
    except Broken as error:
        trouble = UNGRADED, str(error)
    found = [_data(verdict) for verdict in verdicts]
    found += [_untried(exercise, *trouble) for exercise in exercises[len(verdicts) :]]
    statuses = {each["status"] for each in found}
    status = next(each for each in (UNGRADED, FAILED, PASSED) if each in statuses)
    answer = {
        "file": str(file),
        "shardlab": metadata.version("shardlab"),
        "status": status,
        "points": None if status == UNGRADED else sum(each["points"] for each in found),
        "maximum": sum(exercise.points for exercise in exercises),
        "exercises": found,
    }
    print(json.dumps(answer, indent=2))
    return {PASSED: ALL_PASS, FAILED: SOME_FAIL, UNGRADED: NOT_GRADED}[status]


def _graded(exercises: list[Exercise], file: Path, **options: Any) -> Iterator[Verdict]:
    """Yield each verdict, and record it unless the function is the starter as it stands."""
    for verdict in grader.grade(exercises, file, **options):
        report = None if options["homework"] else verdict.report
        if report or (report is not None and not untouched.holds_starter(verdict.exercise, file)):
            record.keep(report)
        yield verdict


def _data(verdict: Verdict) -> dict[str, Any]:
    marks = {} if verdict.report is None else verdict.report.marks
    return {
        "name": verdict.exercise.name,
        "status": verdict.status,
        "points": verdict.points,
        "maximum": verdict.exercise.points,
        "properties": [{"name": name, "status": mark} for name, mark in marks.items()],
        "reason": verdict.reason,
        "seconds": round(verdict.seconds, 3),
    }


def _untried(exercise: Exercise, status: str, reason: str) -> dict[str, Any]:
    return _data(Verdict(exercise, None, status, reason, 0.0))
