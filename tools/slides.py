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
STYLE = "slides.css"
NOTES = {"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}
SHOWN = {"width": 1280, "height": 720, "margin": 0.03, "center": False, "hash": True, "slideNumber": "c/t"}
SHOWN |= {"transition": "none", "pdfSeparateFragments": False, "navigationMode": "linear"}


def settings(book: Book, static: Path) -> dict[str, Any]:
    """What Sphinx needs to know; files that every deck shares go into `static`."""
    static.mkdir()
    for path in (Path(__file__).with_name(STYLE), *(ROOT / "book" / "_ext" / "fonts").glob("*.woff2")):
        shutil.copy(path, static)
    return {
        "project": book.settings["title"],
        "author": book.settings["author"],
        "extensions": ["myst_parser", "sphinx.ext.mathjax", "sphinx_revealjs", "shardlab_drawings"],
        "myst_enable_extensions": book.settings["sphinx"]["config"]["myst_enable_extensions"],
        "mathjax_path": shardlab_mathjax.copied(static),
        "revealjs_static_path": [str(static)],
        "revealjs_css_files": [STYLE],
        "revealjs_html_theme": "revealjs-simple",
        "revealjs_style_theme": "white",
        "revealjs_script_files": ["revealjs/dist/reveal.js", NOTES["src"]],
        "revealjs_script_plugins": [NOTES],
        "revealjs_script_conf": SHOWN,
    }


def make(book: Book, chapters: list[str], target: Path) -> list[Path]:
    """Write the decks into `target`, and return their files; the first one lists the others."""
    made = deck.decks(book, [f"book/{chapter}" for chapter in chapters])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        shutil.copytree(ROOT / "book" / "images", source / "images")
        for chapter, slides in zip(chapters, made.values(), strict=True):
            (source / f"{chapter}.md").write_text("\n".join(slide.text for slide in slides))
        names = "\n".join(chapters)
        contents = f"# {book.settings['title']}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
        (source / "index.md").write_text(contents)
        said, built = settings(book, Path(folder) / "static"), Path(folder) / "built"
        app = Sphinx(source, None, built, Path(folder) / "read", "revealjs", said, status=None, warningiserror=True)
        app.build()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(built, target)
    return [target / f"{name}.html" for name in ("index", *chapters)]


def main() -> None:
    """Run the command of this file's first lines."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapter", nargs="*", help="one of " + ", ".join(CHAPTERS))
    parser.add_argument("--into", type=Path, default=TARGET, help="a new folder, or one of decks, which it replaces")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.chapter if name not in CHAPTERS]:
        parser.error(f"there is no chapter {', '.join(unknown)}; there are {', '.join(CHAPTERS)}")
    target = arguments.into.resolve()
    if target.exists() and not (target / "_static" / STYLE).exists() and (target.is_file() or any(target.iterdir())):
        parser.error(f"{target} holds other things than decks; name a new folder")
    for path in make(Book(ROOT), list(dict.fromkeys(arguments.chapter)) or list(CHAPTERS), target):
        print(path)


if __name__ == "__main__":
    main()
