"""The learner's notebooks: made from the book into the folder notebooks/, never over a learner's work.

    python tools/lab.py                  makes what is missing and brings untouched notebooks up to date
    python tools/lab.py reset memory     a fresh chapter; the learner's own stays beside it, with the date in its name

Beside each chapter with exercises, notebooks/workshop/ has its workshop edition, which `workshop.py` makes.

A notebook that was changed stays as it is. When the book has a newer edition of its chapter, that comes beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

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
        here = read(path) if path.exists() else None
        if here is None or untouched(here):
            break
        if here.metadata.shardlab.edition == made.metadata.shardlab.edition:
            return
    text = written(made if path == target else noted(made, target.name))
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        if path != target:
            yield f"{target.name} is kept with your changes; the newer edition is {path.name}"


def editions(target: Path) -> Iterator[Path]:
    """01_memory.ipynb, then 01_memory_edition_2.ipynb, and so on."""
    yield target
    for number in count(2):
        yield target.with_stem(f"{target.stem}_edition_{number}")


def noted(made: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The notebook with a first cell that says why it is here."""
    note = nbformat.v4.new_markdown_cell(NOTE_TEXT.format(name), id=NOTE)
    return nbformat.from_dict({**made, "cells": [note, *made.cells]})


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook, or nothing where it is none of ours: then it counts as a learner's."""
    try:
        found = nbformat.read(path, as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError):
        found = nbformat.v4.new_notebook()
    found.metadata.setdefault("shardlab", nbformat.from_dict({"page": "", "edition": ""}))
    return found


def untouched(found: nbformat.NotebookNode) -> bool:
    """Whether its cells still hold and show what the book put there."""
    cells = [cell for cell in found.cells if cell.get("id") != NOTE]
    return state(nbformat.from_dict({**found, "cells": cells})) == found.metadata.shardlab.edition


def strays(book: Book, folder: Path) -> Iterator[str]:
    """Remove untouched notebooks of chapters that have another number now, or are no more; mention changed ones."""
    numbered = {name.removesuffix(".ipynb") for name in book.names.values()}
    for path in sorted(folder.glob("*.ipynb")):
        name = OURS.fullmatch(path.name)
        if name and name[1] not in numbered and (here := read(path)).metadata.shardlab.page:
            if untouched(here):
                path.unlink()
            else:
                now = next((each for each in book.names.values() if each[3:] == f"{name[1][3:]}.ipynb"), None)
                yield f"{path.name} is kept with your changes; " + (
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
        if target.exists() and not untouched(read(target)):
            kept = target.with_stem(f"{target.stem}_{datetime.now():%Y-%m-%d_%H-%M-%S}")
            target.rename(kept)
            yield f"your version is now {kept.relative_to(folder)}"
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
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
