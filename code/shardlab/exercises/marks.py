"""Grade a class: a homework, and what each learner has handed in for it.

Points come from running each file now, never from a record that a learner keeps.
"""

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from shardlab.files.given import read_bytes, shown

from . import grader, notebook, record
from .checker import PASSED, RUNS, UNGRADED
from .grader import Broken, Unusable, Verdict
from .homework import Homework
from .notebook import KINDS

FORMULA = "=+-@\t\r"  # a spreadsheet computes a cell that begins with one of these
STOPS = (  # what a report says first of a run that has stopped, the most telling line first
    r"^Deadlock: .*",
    r"^rank \d+ (?:died|hung up): .*",
    r"^ranks? \d.* raised\n(?:  .*\n)*.*",  # with its stack, and the error below it
    r"^The case.* takes longer than .*",
    r"^The file.*",
)


@dataclass(frozen=True)
class Marks:
    """What one learner has reached."""

    learner: str
    points: dict[str, int | None]  # by exercise; None: not graded
    late: timedelta  # after the due date; 0 before it
    remarks: list[str]
    verdicts: Sequence[Verdict] = ()

    @property
    def graded(self) -> bool:
        """Whether the grader itself has failed nowhere."""
        return None not in self.points.values()

    @property
    def total(self) -> int | None:
        """The sum of all points; None where an exercise was not graded."""
        known = [each for each in self.points.values() if each is not None]
        return sum(known) if self.graded else None


def grade(homework: Homework, places: Sequence[Path], name: str = "") -> Iterator[Marks]:
    """Grade what lies at each place: a file, or a folder with one Python file or notebook.

    name: of the file in each folder, where there are several.
    """
    first: dict[bytes, str] = {}  # what a file holds -> who handed it in first
    for place, learner in zip(places, distinct(places, [*map(_learner, places)]), strict=True):
        files: list[Path] = []
        try:
            files = _answers(place, name)
            found = ", ".join(plain(file.name) for file in files) or "no file"
        except OSError as error:
            found = f"nothing that can be read ({error.strerror})"
        if len(files) == 1:
            same = first.setdefault(_contents(files[0]), learner)
            remarks = [f"the same file as that of {same}"] if same != learner else []
            yield _marks(homework, learner, files[0], remarks)
        else:
            none: dict[str, int | None] = dict.fromkeys(homework.exercises, 0)
            remark = f"{found} to grade; one is needed, or --file"
            yield Marks(learner, none, timedelta(0), [remark])


def _answers(place: Path, name: str) -> list[Path]:
    """Return the files that can be graded at a place."""
    if place.is_file():
        return [place]
    if name:
        return [place / name] if (place / name).is_file() else []
    found = place.iterdir() if place.is_dir() else ()
    return sorted(file for file in found if _counts(file))


def _counts(file: Path) -> bool:
    """Tell whether a file of a folder may be what was handed in; a broken link is none."""
    return file.suffix in KINDS and file.name[0] not in "._" and file.is_file()


def _contents(file: Path) -> bytes:
    """Return what a file holds, or its path where it cannot be read."""
    try:
        return read_bytes(file)
    except ValueError:
        return str(file).encode()


def _marks(homework: Homework, learner: str, file: Path, remarks: list[str]) -> Marks:
    """Grade one file, about which there may be remarks; what it prints is dropped."""
    verdicts: list[Verdict] = []
    late = timedelta(0)
    if homework.due is not None:  # before the file runs, which could change its own date
        handed_in = datetime.fromtimestamp(file.stat().st_mtime, homework.due.tzinfo)
        late = max(late, handed_in - homework.due)
    missing: int | None = 0
    if taken := _taken(file):
        remarks.append(f"imports {', '.join(taken)}: is that what an exercise asks for?")
    exercises = [*homework.exercises.values()]
    try:
        verdicts.extend(grader.grade(exercises, file, io.StringIO(), homework))
    except Unusable as error:
        remarks.append(f"{file.name} cannot be run: {error}")
    except Broken as error:
        missing = None
        remarks.append(f"{UNGRADED}: {error}")
    points: dict[str, int | None] = dict.fromkeys(homework.exercises, missing)
    for verdict in verdicts:
        known = verdict.status != UNGRADED
        points[verdict.exercise.name] = verdict.points if known else None
        if verdict.status != PASSED:
            remarks += [_first_line(verdict).replace(str(file), file.name)]
    return Marks(learner, points, late, [shown(each, keep="") for each in remarks], verdicts)


def _taken(file: Path) -> list[str]:
    """Return what a file imports of the book's methods; nothing of a file that cannot be read."""
    try:
        return notebook.of_the_book(notebook.source(file))
    except (ValueError, SyntaxError):
        return []


def _first_line(verdict: Verdict) -> str:
    """Say in a line what an exercise lacks: the first property that failed, or the reason.

    Of a function that did not run to its end, how it stopped.
    """
    marks = {} if verdict.report is None else verdict.report.marks
    failed = next((name for name, mark in marks.items() if mark != PASSED), "")
    what = failed if failed not in ("", RUNS) else _stop(verdict.reason)
    name = verdict.exercise.name
    return what if what.startswith(name) else f"{name} {verdict.status}: {what}"


def _stop(reason: str) -> str:
    """Return in a line how a run has stopped; the whole reason where it does not say so."""
    for stop in STOPS:
        if found := re.search(stop, reason, re.MULTILINE):
            first, *stack = found.group().splitlines()
            return " ".join([first, *stack[-1:]])
    return " ".join(reason.split())


def _learner(place: Path) -> str:
    whole = Path(os.path.realpath(place))  # which raises nothing
    return plain(whole.stem if os.path.isfile(whole) else whole.name)


def distinct(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Put the whole path in place of each name that occurs twice."""
    counts = Counter(names)
    pairs = zip(paths, names, strict=True)
    return [plain(str(path)) if counts[name] > 1 else name for path, name in pairs]


def plain(name: str) -> str:
    """Replace what a terminal would execute by question marks."""
    letters = unicodedata.normalize("NFC", name)
    return "".join(each if each.isprintable() else "?" for each in letters)


def table(homework: Homework, marks: Sequence[Marks]) -> str:
    """Make a table for a terminal: a line for each learner, then the remarks."""
    rows = [["learner", *homework.exercises, "total", "late"]]
    for each in marks:
        rows += [[each.learner, *map(_word, [*each.points.values(), each.total]), _late(each)]]
    remarks = [f"{each.learner}: {remark}" for each in marks for remark in each.remarks]
    return "\n".join([record.table(rows), *([""] if remarks else []), *remarks])


def report(homework: Homework, marks: Marks) -> str:
    """Write what is handed back to one learner: each verdict in full, remarks, and the points."""
    texts = [each.report.text("") if each.report else each.reason for each in marks.verdicts]
    maximum = sum(each.points for each in homework.exercises.values())
    late = [f"late: {_late(marks)} h"] if _late(marks) else []
    total = f"{marks.learner}: {_word(marks.total)} of {maximum} points"
    return "\n\n".join([*(shown(each) for each in texts), *marks.remarks, *late, total]) + "\n"


def data(homework: Homework, marks: Sequence[Marks]) -> list[dict[str, Any]]:
    """Return the marks of a class as JSON has them; points are None where nothing was graded."""
    maximum = sum(each.points for each in homework.exercises.values())
    return [
        {
            "learner": each.learner,
            "exercises": each.points,
            "points": each.total,
            "maximum": maximum,
            "seconds_late": each.late.total_seconds(),
            "remarks": each.remarks,
        }
        for each in marks
    ]


def write_csv(homework: Homework, marks: Sequence[Marks], file: TextIO) -> None:
    """Write a table for a spreadsheet: points by exercise, and hours after the due date."""
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["learner", *homework.exercises, "total", "hours late", "remarks"])
    for each in marks:
        hours = round(each.late / timedelta(hours=1), 2)
        numbers = map(_word, [*each.points.values(), each.total])
        remarks = in_cell("; ".join(each.remarks))
        lines.writerow([in_cell(each.learner), *numbers, hours, remarks])


def in_cell(text: str) -> str:
    """Mark a text that a spreadsheet would take for a formula."""
    return "'" * text.startswith(tuple(FORMULA)) + text


def _word(points: int | None) -> str:
    return UNGRADED if points is None else str(points)


def _late(marks: Marks) -> str:
    minutes = int(marks.late.total_seconds() // 60)
    return f"{minutes // 60}:{minutes % 60:02}" if minutes else ""
