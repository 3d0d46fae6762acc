"""Decks for class, one for each chapter, out of the chapters' own pages:

    python tools/slides.py                   all chapters
    python tools/slides.py memory zero       two of them

They open from disk without a network. S opens the notes in a window of their own, and E the view to print.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "book" / "_ext"))  # the process that runs cells looks there, too
import deck
import shardlab_mathjax
from shardlab_source import Book
from sphinx.application import Sphinx

from shardlab.exercises import CHAPTERS
from shardlab.files.terminal import Parser

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "_build" / "slides"
NOTES = {"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}
SHOWN = {"width": 1280, "height": 720, "margin": 0.03, "center": False, "hash": True, "slideNumber": "c/t"}
SHOWN |= {"transition": "none", "pdfSeparateFragments": False, "navigationMode": "linear"}


def settings(book: Book, static: Path) -> dict[str, Any]:
    """What Sphinx needs to know; files that every deck shares go into `static`."""
    static.mkdir()
    for path in (Path(__file__).with_suffix(".css"), *(ROOT / "book" / "_ext" / "fonts").glob("*.woff2")):
        shutil.copy(path, static)
    return {
        "project": book.settings["title"],
        "author": book.settings["author"],
        "extensions": ["myst_parser", "sphinx.ext.mathjax", "sphinx_revealjs"],
        "myst_enable_extensions": book.settings["sphinx"]["config"]["myst_enable_extensions"],
        "mathjax_path": shardlab_mathjax.copied(static),
        "revealjs_static_path": [str(static)],
        "revealjs_css_files": ["slides.css"],
        "revealjs_html_theme": "revealjs-simple",
        "revealjs_style_theme": "white",
        "revealjs_script_files": ["revealjs/dist/reveal.js", NOTES["src"]],
        "revealjs_script_plugins": [NOTES],
        "revealjs_script_conf": SHOWN,
    }


def make(book: Book, chapters: list[str], target: Path) -> list[Path]:
    """Write the decks into `target`, and return their files; the first one lists the others."""
    made = deck.decks(book, [f"book/{chapter}" for chapter in chapters])
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        shutil.copytree(ROOT / "book" / "images", source / "images")
        for chapter, slides in zip(chapters, made.values(), strict=True):
            (source / f"{chapter}.md").write_text("\n".join(slide.text for slide in slides))
        names = "\n".join(chapters)
        contents = f"# {book.settings['title']}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
        (source / "index.md").write_text(contents)
        said = settings(book, Path(folder) / "static")
        app = Sphinx(source, None, target, Path(folder) / "read", "revealjs", said, status=None, warningiserror=True)
        app.build()
    return [target / f"{name}.html" for name in ("index", *chapters)]


def main() -> None:
    """Run the command of this file's first lines."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", nargs="*", help="one of " + ", ".join(CHAPTERS))
    parser.add_argument("--into", type=Path, default=TARGET, help="the folder; what is in it is replaced")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.chapter if name not in CHAPTERS]:
        parser.error(f"there is no chapter {', '.join(unknown)}; there are {', '.join(CHAPTERS)}")
    for path in make(Book(ROOT), arguments.chapter or list(CHAPTERS), arguments.into.resolve()):
        print(path)


if __name__ == "__main__":
    main()
