"""Sphinx extension: what the theme and its parts leave out for readers who do not see the page or use no mouse.

Without Jupyter Book 1: it goes with its theme; the audit of the pages says what the next one lacks.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

HEADING = re.compile(r'<h([1-6])( class="explorer-title")?([^>]*)>(.*?)</h\1>', re.DOTALL)
# The corner of a table, above the names of its rows, is the header of nothing: a cell, which has no scope.
CORNER = re.compile(r"<th([^>]*?)(?: scope=\"\w+\")?>((?:<p></p>)?)</th>")


def levels(body: str) -> str:
    """Give the title of each explorer the level below the heading that it stands under."""
    above = 1

    def one(found: re.Match[str]) -> str:
        nonlocal above
        level, ours, others, text = found.groups()
        if not ours:
            above = int(level)
            return found[0]
        return f"<h{above + 1}{ours}{others}>{text}</h{above + 1}>"

    return HEADING.sub(one, body)


def repair(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: Any) -> None:
    """Put the page right before the theme's templates take it."""
    if body := context.get("body"):
        body = body.replace('role="doc-biblioentry"', 'role="listitem"')  # WAI-ARIA has given up the old role
        context["body"] = levels(CORNER.sub(r"<td\1>\2</td>", body))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", repair)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
