"""The directive `statements`: a table of statements as paragraphs, in a page and in its notebook.

Without Jupyter Book 1: mystmd needs the same paragraphs from a plugin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from myst_parser.mdit_to_docutils.base import default_slugify
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

VERDICTS = ("so", "inexact", "not so")


def paragraphs(path: Path) -> str:
    """Write the rows of a table in MyST, numbered: the statement, the verdict, the exact form, where it runs."""
    rows = yaml.safe_load(path.read_text())["statements"]
    wrong = [row["statement"] for row in rows if row["verdict"] not in VERDICTS]
    if wrong:
        raise ValueError(f"{path.name}: the verdict of {wrong[0]!r} must be one of {', '.join(VERDICTS)}")
    return "\n\n".join(paragraph(number, **row) for number, row in enumerate(rows, start=1))


def paragraph(number: int, statement: str, verdict: str, exact: str, chapter: str, section: str, **_: Any) -> str:
    """Write one row; `section` is a heading of the chapter."""
    link = f"[{section}]({chapter}.md#{default_slugify(section)})"
    return f"**{number}. {statement}**\n\n*{verdict.capitalize()}.* {exact} {link}"


class Statements(SphinxDirective):
    """Show the rows of the table that the argument names."""

    required_arguments = 1

    def run(self) -> list[Any]:
        """Parse the paragraphs as if they stood in the page."""
        path = Path(self.get_source_info()[0]).with_name(self.arguments[0])
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(paragraphs(path))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("statements", Statements)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
