"""Sphinx extension: numbers keep to their units at the end of a line, and a Korean term is told to be Korean.

The words of a page change as it is written, so that notebooks and the index of the search have them as they stand.

Without Jupyter Book 1: a transform in a plugin of mystmd.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

UNITS = "%|[kMGTPE]?i?B(?:/s)?|[kMGT]b/s|[kMGTPEZ]?FLOPs?(?:/s|/B)?|[nµm]?s|min|h|[kM]?W|[kMG]?Hz|°C|GPU-h"
EQUALS = r"(?<=\b[A-Za-z]) (?== \d)|(?<=\b[a-z]p) (?== \d)|(?<=\w =) (?=\d)"  # tp = 8
NUMBER = re.compile(rf"(?<=\d) (?=(?:{UNITS})(?![\w/]))|{EQUALS}")
# What is no prose, as a whole, then tags, then what stands between them.
PARTS = re.compile(
    r"<(pre|code|script|style|svg|textarea|option)\b.*?</\1>|<(span|div) class=\"math.*?</\2>|<[^>]*>|(?P<prose>[^<]+)",
    re.DOTALL,
)
KOREAN = re.compile(r"(<dt\b[^>]*>)([^<]*[가-힣][^<]*)")


def kept(part: re.Match[str]) -> str:
    """Return a part of a page, with no break between a number and its unit if it is prose."""
    return NUMBER.sub("\N{NO-BREAK SPACE}", part["prose"]) if part["prose"] else part[0]


def told(body: str) -> str:
    """Return a page's body whose numbers keep to their units and whose Korean terms tell their language."""
    return KOREAN.sub(r'\1<span lang="ko">\2</span>', PARTS.sub(kept, body))


def put_right(_: Sphinx, __: str, ___: str, context: dict[str, Any], ____: Any) -> None:
    """Change the words of a page before the theme's templates take them."""
    if body := context.get("body"):
        context["body"] = told(body)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", put_right)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
