"""Write the notebooks that Colab opens: `python tools/colab.py FOLDER`, in a clone of a published project.

They are the book's, with a first cell that installs the package from the address in _config.yml.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).parents[1] / "book" / "_ext"))
from shardlab_notebooks import notebook, written
from shardlab_source import Book

from shardlab.files.terminal import Parser

ROOT = Path(__file__).resolve().parents[1]


def write(book: Book, folder: Path) -> None:
    """Write every notebook. Errors: ValueError where _config.yml has no address."""
    repository = book.settings.get("repository")
    if repository is None:
        raise ValueError("_config.yml names no repository; uncomment `repository` there")
    folder.mkdir(parents=True, exist_ok=True)
    install = f"%pip install --quiet 'shardlab[book] @ git+{repository['url']}@{repository['branch']}'"
    for page, name in book.names.items():
        made = notebook(book, page)
        made.cells.insert(0, nbformat.v4.new_code_cell(install, id="install"))
        (folder / name).write_text(written(made))


if __name__ == "__main__":
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    try:
        write(Book(ROOT), parser.parse_args().folder)
    except ValueError as error:
        sys.exit(str(error))
