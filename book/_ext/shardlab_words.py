"""Sphinx extension: numbers keep to their units at the end of a line, and a Korean term is told to be Korean.

The words of a page change as it is written, so that notebooks and the index of the search have them as they stand.

Without Jupyter Book 1: a transform in a plugin of mystmd.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

from shardlab.explorers.words import together

KOREAN = re.compile(r"(<dt\b[^>]*>)([^<]*[가-힣][^<]*)")


def told(body: str) -> str:
    """Return a page's body whose numbers keep to their units and whose Korean terms tell their language."""
    return KOREAN.sub(r'\1<span lang="ko">\2</span>', together(body))


def put_right(_: Sphinx, __: str, ___: str, context: dict[str, Any], ____: Any) -> None:
    """Change the words of a page before the theme's templates take them."""
    if body := context.get("body"):
        context["body"] = told(body)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", put_right)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
