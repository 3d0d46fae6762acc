"""Keep a learner's record: which exercises have passed, and since when.

The record is a convenience and no proof, because it is a text file. To prove a solution, `check` it
again.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shardlab.files import learner

from .checker import UNGRADED, Exercise, Report

KIND = "progress"  # the name of the file


@dataclass(frozen=True, order=True)
class Result:
    """The best attempt at one exercise so far."""

    passed: bool
    date: str  # YYYY-MM-DD, of the first attempt that passed, or else of the first attempt


UNTRIED = Result(False, "")


def keep(report: Report) -> None:
    """Record an attempt that is the first, or the first to pass; nothing that was not graded."""
    if report.verdict == UNGRADED:
        return
    name = report.exercise.name
    before = best(learner.read(KIND)).get(name)
    if before is None or (report and not before.passed):
        points = report.exercise.points if report else 0
        learner.append(KIND, {"exercise": name, "passed": bool(report), "points": points})


def best(records: Iterable[Mapping[str, Any]]) -> dict[str, Result]:
    """Return the best result of each exercise by name; leave out records that are no results."""
    results: dict[str, Result] = {}
    for record in records:
        name = record.get("exercise")
        passed = record.get("passed")
        date = _day(record.get("date"))
        if not isinstance(name, str) or not isinstance(passed, bool) or date is None:
            continue
        before = results.get(name)
        if before is None or (passed and (not before.passed or date < before.date)):
            results[name] = Result(passed, date)
    return results


def _day(date: Any) -> str | None:
    """Return the day of a time in ISO 8601, in its own time zone; None for anything else."""
    try:
        return datetime.fromisoformat(date).date().isoformat()
    except (TypeError, ValueError):
        return None


def score(results: Mapping[str, Result], exercises: Sequence[Exercise]) -> tuple[int, int, str]:
    """Return how many exercises have passed, their points, and the date of the last one."""
    passed = [each for each in exercises if results.get(each.name, UNTRIED).passed]
    dates = [results[each.name].date for each in passed]
    return len(passed), sum(each.points for each in passed), max(dates, default="")


# ---- as a table ----------------------------------------------------------------------------------


def by_chapter(results: Mapping[str, Result], chapters: Mapping[str, Sequence[Exercise]]) -> str:
    """Make a table with a line for each chapter, and one for all of them."""
    rows = [["chapter", "passed", "points", "last one passed"]]
    everything = [each for exercises in chapters.values() for each in exercises]
    for name, exercises in {**chapters, "all": everything}.items():
        passed, points, last = score(results, exercises)
        total = sum(each.points for each in exercises)
        rows += [[name, f"{passed} of {len(exercises)}", f"{points} of {total}", last]]
    return table(rows)


def by_exercise(results: Mapping[str, Result], exercises: Sequence[Exercise]) -> str:
    """Make a table with a line for each exercise of a chapter."""
    rows = [["exercise", "points", "passed"]]
    for each in exercises:
        result = results.get(each.name, UNTRIED)
        tried = result.date and not result.passed
        points = each.points if result.passed else 0
        date = f"not yet; tried {result.date}" if tried else result.date
        rows += [[each.name, f"{points} of {each.points}", date]]
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Set rows of words in columns of equal width, two spaces apart."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        pairs = zip(row, widths, strict=True)
        cells = [text + " " * (width - _width(text)) for text, width in pairs]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Count the columns of a terminal: Hangul and ideographs take two each."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)
