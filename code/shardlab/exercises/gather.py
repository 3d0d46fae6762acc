"""Gather the records of a class in one table.

What is handed in is read as data: nothing in it is executed, believed or shown. A learner has the
name of the folder (or the file) that holds the record. Points are those of the exercises, not those
that a record claims.
"""

import csv
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from shardlab.files import learner

from . import record
from .checker import Exercise
from .record import Result

MAX_BYTES = 1_000_000  # a record has some 100 bytes for each exercise
FORMULA = "=+-@\t\r"  # a spreadsheet computes a cell that begins with one of these


@dataclass(frozen=True)
class Learner:
    """One learner's record, and remarks on what is wrong with it."""

    name: str
    results: Mapping[str, Result]
    remarks: Sequence[str]


def gather(paths: Sequence[Path], known: Mapping[str, Exercise]) -> list[Learner]:
    """Read the record at each path, which is a learner's folder or a file."""
    names = distinct(paths, [_name(path) for path in paths])
    return [Learner(name, *_read(path, known)) for path, name in zip(paths, names, strict=True)]


def distinct(paths: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Put the whole path in place of each name that occurs twice."""
    counts = Counter(names)
    pairs = zip(paths, names, strict=True)
    return [plain(str(path)) if counts[name] > 1 else name for path, name in pairs]


def table(learners: Sequence[Learner], exercises: Sequence[Exercise]) -> str:
    """Make a table for a terminal: a line for each learner, then the remarks."""
    total = sum(each.points for each in exercises)
    rows = [["learner", "passed", "points", "last one passed"]]
    for each in learners:
        passed, points, last = record.score(each.results, exercises)
        rows += [[each.name, f"{passed} of {len(exercises)}", f"{points} of {total}", last]]
    remarks = [f"{each.name}: {remark}" for each in learners for remark in each.remarks]
    return "\n".join([record.table(rows), *([""] if remarks else []), *remarks])


def write_csv(
    learners: Sequence[Learner], chapters: Mapping[str, Sequence[Exercise]], file: TextIO
) -> None:
    """Write a table for a spreadsheet: a line for each learner, with the points of each chapter."""
    whole = [each for some in chapters.values() for each in some]
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["learner", "passed", "points", "last one passed", *chapters, "remarks"])
    for each in learners:
        points = [record.score(each.results, some)[1] for some in chapters.values()]
        score = record.score(each.results, whole)
        lines.writerow([in_cell(each.name), *score, *points, "; ".join(each.remarks)])


def in_cell(text: str) -> str:
    """Mark a text that a spreadsheet would take for a formula."""
    return "'" * text.startswith(tuple(FORMULA)) + text


def _read(path: Path, known: Mapping[str, Exercise]) -> tuple[dict[str, Result], list[str]]:
    """Return the results of known exercises, and remarks on all other lines."""
    try:
        places = [path / learner.FOLDER, path] if path.is_dir() else []
        files = [place / f"{record.KIND}.jsonl" for place in places] or [path]
        file = next((file for file in files if file.is_file()), None)
        if file is None:
            return {}, ["no record"]
        with file.open("rb") as opened:
            whole = opened.read(MAX_BYTES + 1)
    except OSError as error:
        return {}, [f"the record cannot be read: {error.strerror}"]
    if len(whole) > MAX_BYTES:
        return {}, [f"the record is larger than {MAX_BYTES:,} bytes, and was not read"]
    records, unread = learner.parse(whole)
    results, bad = record.best(records)
    strange = len(results.keys() - known.keys())
    counts = {
        "of the lines cannot be read": unread,
        "of the lines lack an exercise, a verdict or a date": bad,
        "of the exercises are not in this edition": strange,
    }
    remarks = [f"{count} {what}" for what, count in counts.items() if count]
    return {name: result for name, result in results.items() if name in known}, remarks


def _name(path: Path) -> str:
    """Return the name of the learner's folder, or of a file with a name of its own."""
    whole = Path(os.path.realpath(path))  # which raises nothing
    if os.path.isfile(whole) and whole.name != f"{record.KIND}.jsonl":
        return plain(whole.stem)
    folder = whole.parent if os.path.isfile(whole) else whole
    return plain((folder.parent if folder.name == learner.FOLDER else folder).name)


def plain(name: str) -> str:
    """Replace what a terminal would execute by question marks."""
    letters = unicodedata.normalize("NFC", name)
    return "".join(each if each.isprintable() else "?" for each in letters)
