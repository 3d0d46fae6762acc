"""The style sheets that every page has, in one file, without the rules for what no page has: a fifth of their bytes.

A browser paints nothing before it has read them all.

Without Jupyter Book 1: it goes with the theme.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tinycss2

NAMES = (  # in the order of a page's head; theme.css asks for basic.css, and sphinx-thebe.css is for what we do not use
    "basic",
    "styles/pydata-sphinx-theme",
    "pygments",
    "styles/sphinx-book-theme",
    "togglebutton",
    "copybutton",
    "mystnb.*",
    "shardlab/explorer",
    "shardlab/guess",
    "sphinx-design.min",
    "shardlab/book",
)
TARGET = "styles/pages.css"
LINK = re.compile(r'\s*<link[^>]*href="([./]*_static/)([^"?]*)\.css[^"]*"[^>]*>')
CLASS = re.compile(r'\bclass="([^"]*)"')
ADDRESS = re.compile(r"url\((['\"]?)([\w.-]+\.woff2)\1\)")  # beside the style sheet
NESTED = {"media", "supports"}  # rules that hold rules


def written(static: Path, pages: Iterable[str]) -> str:
    """Write the one style sheet; return its name with a digest of its text."""
    classes = {name for page in pages for found in CLASS.findall(page) for name in found.split()}
    scripts = [path.read_text(encoding="utf-8") for path in sorted(static.rglob("*.js")) if path.stat().st_size < 2e5]
    known = classes | {word for script in scripts for word in re.findall(r"[\w-]+", script)}
    texts = []
    for name in NAMES:
        for path in sorted(static.glob(f"{name}.css")):
            rules = tinycss2.parse_stylesheet(path.read_text(encoding="utf-8"), skip_comments=True)
            text = "".join(used(rules, known))
            texts.append(ADDRESS.sub(r"url(../shardlab/\2)", text) if path.parent.name == "shardlab" else text)
    whole = "".join(texts)
    (static / TARGET).write_text(whole, encoding="utf-8")
    return f"{TARGET}?v={hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def used(rules: Iterable[Any], known: set[str]) -> Iterator[str]:
    """Yield the rules that can apply to what has classes that are `known`."""
    for rule in rules:
        if rule.type == "qualified-rule":
            kept = [each for each in selectors(rule.prelude) if needed(each) <= known]
            if kept:
                yield f"{','.join(kept)}{{{tinycss2.serialize(rule.content).strip()}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in NESTED:
            inner = "".join(used(tinycss2.parse_rule_list(rule.content, skip_comments=True), known))
            if inner:
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inner}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword != "charset":
            yield rule.serialize()


def selectors(prelude: list[Any]) -> Iterator[str]:
    """Yield the selectors of a rule, which commas divide, but for those inside brackets."""
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    yield from (tinycss2.serialize(part).strip() for part in parts)


def needed(selector: str) -> set[str]:
    """Return the classes without which nothing fits a selector; what stands in brackets may be one of several."""
    while (outside := re.sub(r"\([^()]*\)|\[[^\]]*\]", "", selector)) != selector:
        selector = outside
    return set(re.findall(r"\.(-?[A-Za-z_][\w-]*)", selector))


def linked(page: str, style: str) -> str:
    """Return a page that links to the one style sheet, in the place of the first that is in it."""
    names = [*NAMES, "styles/theme", "sphinx-thebe", TARGET.removesuffix(".css")]
    seen = False

    def one(link: re.Match[str]) -> str:
        nonlocal seen
        if not any(fnmatch.fnmatch(link[2], name) for name in names):
            return link[0]
        first, seen = not seen, True
        return f'\n<link rel="stylesheet" href="{link[1]}{style}">' if first else ""

    return LINK.sub(one, page)
