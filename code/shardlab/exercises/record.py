"""A learner's record: which exercises have passed, and since when.

It is a convenience and no proof, for it is a text file. The proof of a solution is to `check` it again.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shardlab import learner

from .checker import Exercise, Report

KIND = "progress"


@dataclass(frozen=True, order=True)
class Result:
    """The best attempt at one exercise so far."""

    passed: bool
    date: str  # YYYY-MM-DD: when it passed first, or was tried first


def keep(report: Report) -> None:
    """Record an attempt that is the first, or the first to pass."""
    name = report.exercise.name
    before = best(learner.read(KIND))[0].get(name)
    if before is None or (report and not before.passed):
        points = report.exercise.points if report else 0
        learner.append(KIND, {"exercise": name, "passed": bool(report), "points": points})


def best(records: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Result], int]:
    """Return the best result of each exercise by name, and how many of these records are no results."""
    results: dict[str, Result] = {}
    bad = 0
    for record in records:
        name, passed, date = record.get("exercise"), record.get("passed"), _day(record.get("date"))
        if not isinstance(name, str) or not isinstance(passed, bool) or date is None:
            bad += 1
        elif name not in results or (passed and (not results[name].passed or date < results[name].date)):
            results[name] = Result(passed, date)
    return results, bad


def _day(date: Any) -> str | None:
    """The day of a time in ISO 8601, as whoever wrote it saw it; None for anything else."""
    try:
        return datetime.fromisoformat(date).date().isoformat()
    except (TypeError, ValueError):
        return None


def score(results: Mapping[str, Result], exercises: Sequence[Exercise]) -> tuple[int, int, str]:
    """How many of the exercises have passed, how many points they gave, and when the last one passed."""
    passed = [each for each in exercises if each.name in results and results[each.name].passed]
    dates = [results[each.name].date for each in passed]
    return len(passed), sum(each.points for each in passed), max(dates, default="")


# ---- as a table ----------------------------------------------------------------------------------------------------


def by_chapter(results: Mapping[str, Result], chapters: Mapping[str, Sequence[Exercise]]) -> str:
    """A line for each chapter, and one for all of them."""
    rows = [["chapter", "passed", "points", "last one passed"]]
    for name, exercises in {**chapters, "all": [each for some in chapters.values() for each in some]}.items():
        passed, points, last = score(results, exercises)
        total = sum(each.points for each in exercises)
        rows += [[name, f"{passed} of {len(exercises)}", f"{points} of {total}", last]]
    return table(rows)


def by_exercise(results: Mapping[str, Result], exercises: Sequence[Exercise]) -> str:
    """A line for each exercise of a chapter."""
    rows = [["exercise", "points", "passed"]]
    for each in exercises:
        result = results.get(each.name, Result(False, ""))
        date = result.date if result.passed or not result.date else f"not yet; tried {result.date}"
        rows += [[each.name, f"{each.points if result.passed else 0} of {each.points}", date]]
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words in columns of equal width, two spaces apart."""
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Columns of a terminal: Hangul and ideographs take two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)
