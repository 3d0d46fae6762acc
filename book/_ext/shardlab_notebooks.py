"""Every page of the book as a Jupyter notebook, without executing anything: jupytext finds the cells.

Without Jupyter Book 1: it stays, and is called before the build.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
from pathlib import Path
from typing import Any

import nbformat
from jupytext.myst import myst_to_notebook
from shardlab_markdown import translate
from shardlab_source import Book, Place

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
FOLDED = {"hide-input": ["source"], "remove-input": ["source"], "hide-output": ["outputs"]}
FOLDED["hide-cell"] = ["source", "outputs"]

# How a cell is shown, and what programs write into a notebook that a learner only reads.
SHOWN = {"cellView", "collapsed", "execution", "jupyter", "scrolled", "trusted"}
OURS = {"kernelspec", "language_info", "shardlab", "source_map", "widgets"}


def notebook(book: Book, page: str) -> nbformat.NotebookNode:
    """Make the notebook of a page. The same source gives the same notebook, byte for byte."""
    text, stem = book.path(page).read_text(), Path(page).name
    made, lines = myst_to_notebook(text, add_source_map=True), text.splitlines()
    for number, (cell, line) in enumerate(zip(made.cells, made.metadata["source_map"], strict=True)):
        cell.id = f"{stem[:50]}-{number}"
        if cell.cell_type == "markdown":
            first = next(each for each in itertools.count(line) if lines[each].strip())
            cell.source = translate(cell.source, Place(book, page, first + 1))
        else:
            cell.metadata |= folded(cell.metadata.get("tags", []))
    made.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": language()})
    made.metadata["shardlab"] = {"page": stem, "edition": state(made)}
    return made


def written(made: nbformat.NotebookNode) -> str:
    """The text of a notebook's file, as JupyterLab saves it."""
    return f"{nbformat.writes(made)}\n"


def state(made: nbformat.NotebookNode) -> str:
    """A name for what a learner may change; to save, fold or run a cell that shows nothing does not change it."""
    cells = []
    for cell in made.cells:
        more = {name: value for name, value in cell.metadata.items() if name not in SHOWN}
        cells.append((cell.cell_type, cell.source, cell.get("outputs", []), cell.get("attachments", {}), more))
    more = {name: value for name, value in made.metadata.items() if name not in OURS}
    return hashlib.sha256(json.dumps([cells, more], sort_keys=True).encode()).hexdigest()[:16]


def language() -> dict[str, Any]:
    """What a kernel of this Python says of itself; where a notebook says the same, opening it changes nothing."""
    mode = {"codemirror_mode": {"name": "ipython", "version": 3}, "version": platform.python_version()}
    names = {"name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3"}
    return {"file_extension": ".py", "mimetype": "text/x-python", **names, **mode}


def folded(tags: list[str]) -> dict[str, Any]:
    """The metadata by which JupyterLab and Colab fold a cell that the page folds, as JupyterLab saves it."""
    parts = {part for tag in tags for part in FOLDED.get(tag, [])}
    others = ({"cellView": "form"} if "source" in parts else {}) | ({"collapsed": True} if "outputs" in parts else {})
    return {"jupyter": {f"{part}_hidden": True for part in sorted(parts)}, **others} if parts else {}
