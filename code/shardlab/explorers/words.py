"""Numbers keep to their units at the end of a line: one rule for pages and for what explorers say."""

import re

UNITS = "%|[kMGTPE]?i?B(?:/s)?|[kMGT]b/s|[kMGTPEZ]?FLOPs?(?:/s|/B)?|[nµm]?s|min|h|[kM]?W|[kMG]?Hz|°C|GPU-h"
EQUALS = r"(?<=\b[A-Za-z]) (?== \d)|(?<=\b[a-z]p) (?== \d)|(?<=\w =) (?=\d)"  # tp = 8
NUMBER = re.compile(rf"(?<=\d) (?=(?:{UNITS})(?![\w/]))|{EQUALS}")
# What is no prose, as a whole, then tags, then what stands between them.
PARTS = re.compile(
    r"<(pre|code|script|style|svg|textarea|option)\b.*?</\1>|<(span|div) class=\"math.*?</\2>|<[^>]*>|(?P<prose>[^<]+)",
    re.DOTALL,
)


def together(body: str) -> str:
    """Return HTML with no break between a number and its unit in prose; code and formulas stay."""
    return PARTS.sub(_kept, body)


def _kept(part: re.Match[str]) -> str:
    """Return a part of a page, its spaces replaced where it is prose."""
    return NUMBER.sub("\N{NO-BREAK SPACE}", part["prose"]) if part["prose"] else part[0]
