"""The learner's notebooks: made from the book into the folder notebooks/, never over a learner's work.

    python tools/lab.py                  makes what is missing and brings untouched notebooks up to date
    python tools/lab.py reset memory     a fresh chapter; the learner's own stays beside it, with the date in its name

Beside each chapter with exercises, notebooks/workshop/ has its workshop edition, which `workshop.py` makes.

A notebook that was changed stays as it is. When the book has a newer edition of its chapter, that comes beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

import nbformat

sys.path.insert(0, str(Path(__file__).parents[1] / "book" / "_ext"))
import workshop
from shardlab_notebooks import notebook, state, written
from shardlab_source import Book

from shardlab.files.terminal import Parser

ROOT = Path(__file__).resolve().parents[1]
NOTE = "newer-edition"  # the id of the cell that says so
NOTE_TEXT = "**The book has a newer edition of this chapter; here it is.** Your own version stays in [{0}]({0})."
OURS = re.compile(r"(\d\d_\w+?)(?:_edition_(\d+))?\.ipynb")  # no date in its name, as what `reset` keeps has


def update(book: Book, folder: Path) -> Iterator[str]:
    """Make the notebooks of `book` in `folder`; yield a sentence for everything that a learner should know."""
    for page in book.names:
        for target, made in both(book, page, folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield from place(made, target)
    for each in (folder, folder / workshop.FOLDER):
        yield from strays(book, each)


def both(book: Book, page: str, folder: Path) -> Iterator[tuple[Path, nbformat.NotebookNode]]:
    """The reading edition of a page and, if it has one, the workshop edition, each with its place."""
    yield folder / book.names[page], notebook(book, page)
    made = workshop.edition(book, page)
    if made:
        yield folder / workshop.FOLDER / book.names[page], made


def place(made: nbformat.NotebookNode, target: Path) -> Iterator[str]:
    """Write a notebook to `target`, or beside it where a learner has changed what is there."""
    for path in editions(target):
        here = read(path)
        if here is None or here.untouched:
            break
        if here.edition == made.metadata.shardlab.edition:
            return
    text = written(made if path == target else noted(made, target.name))
    if here is None or path.read_text() != text:
        path.write_text(text)
        if path != target:
            yield f"{kept(target)}; the newer edition is {path.name}"


def editions(target: Path) -> Iterator[Path]:
    """01_memory.ipynb, then 01_memory_edition_2.ipynb, and so on."""
    yield target
    for number in count(2):
        yield target.with_stem(f"{target.stem}_edition_{number}")


def noted(made: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook with a first cell that says why it is here."""
    return nbformat.from_dict({**made, "cells": [note(name), *made.cells]})


def note(name: str) -> nbformat.NotebookNode:
    """The cell that says so."""
    return nbformat.v4.new_markdown_cell(NOTE_TEXT.format(name), id=NOTE)


class Here(NamedTuple):
    """What a learner has in a place: page and edition are empty where it is no notebook of ours, or cannot be read."""

    page: str = ""
    edition: str = ""
    untouched: bool = False  # its cells still hold and show what the book put there
    readable: bool = True


def read(path: Path) -> Here | None:
    """What is at `path`, or nothing. Whatever cannot be read is the learner's, as a file of any program may be."""
    if not os.path.lexists(path):
        return None
    try:
        found = nbformat.read(path, as_version=4)
        if "shardlab" not in found.metadata:
            return Here()
        page, edition = str(found.metadata.shardlab.page), str(found.metadata.shardlab.edition)
        cells = [cell for cell in found.cells if not is_note(cell)]
        return Here(page, edition, state(nbformat.from_dict({**found, "cells": cells})) == edition)
    except Exception:  # nbformat raises whatever the first wrong type leads to
        return Here(readable=False)


def is_note(cell: nbformat.NotebookNode) -> bool:
    """Whether a cell is the note as it was written, in which a learner has written nothing."""
    name = re.search(r"\[(.*?)\]", cell.source)
    return name is not None and cell == note(name[1])


def kept(path: Path) -> str:
    """What a learner is told of a file that stays."""
    here = read(path)
    return f"{path.name} is kept " + ("with your changes" if here and here.readable else "and cannot be read")


def strays(book: Book, folder: Path) -> Iterator[str]:
    """Remove untouched notebooks of chapters that have another number now, or are no more; mention changed ones."""
    numbered = {name.removesuffix(".ipynb") for name in book.names.values()}
    for path in sorted(folder.glob("*.ipynb")):
        name = OURS.fullmatch(path.name)
        here = read(path)
        if name and name[1] not in numbered and here and (here.page or not here.readable):
            if here.untouched:
                path.unlink()
            else:
                now = next((each for each in book.names.values() if each[3:] == f"{name[1][3:]}.ipynb"), None)
                yield f"{kept(path)}; " + (
                    f"the chapter is now {now}" if now else "the book has no such chapter any more"
                )


def reset(book: Book, folder: Path, chapter: str) -> Iterator[str]:
    """Make the notebooks of a chapter anew; what a learner has changed gets a name with the date."""
    pages = {Path(page).name: page for page in book.names}
    if chapter not in pages:
        raise ValueError(f"there is no chapter {chapter!r}; there are {', '.join(pages)}")
    for target, made in both(book, pages[chapter], folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        shown = target.relative_to(folder)
        here = read(target)
        if here and not here.untouched:
            dated = target.with_stem(f"{target.stem}_{datetime.now():%Y-%m-%d_%H-%M-%S}")
            free = next(path for path in editions(dated) if not os.path.lexists(path))
            target.rename(free)
            yield f"your version is now {free.relative_to(folder)}"
        target.write_text(written(made))
        yield f"{shown} is fresh"


def main() -> None:
    """Run the command of this file's first lines."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("reset").add_argument("chapter")
    arguments = parser.parse_args()
    book, folder = Book(ROOT), ROOT / "notebooks"
    try:
        said = reset(book, folder, arguments.chapter) if arguments.command else update(book, folder)
        for sentence in said:
            print(sentence)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
