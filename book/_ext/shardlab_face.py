"""Sphinx extension: what a shared link shows of a page, and the files of its pictures that the reader moves.

Without Jupyter Book 1: front matter has the description; the list of files becomes a plugin's.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

PICTURE = Path(__file__).resolve().parents[1] / "images" / "title.png"
# a class of the page -> the names of its files, in this order
MOVING = {"moving": "moving", "moving cuts": "title", "moving memory-timeline": "memory_timeline"}
PICTURES = "race", "buckets", "wires", "pipeline", "planner", "server", "missing"
MOVING |= {f"moving {name}": name for name in PICTURES}
LETTERS = 230  # of a description
TAG = re.compile(r"<[^>]*>")
SENTENCE = re.compile(r"(?<=[.?!])\s+")


def description(document: nodes.document) -> str:
    """Return as many of the first paragraph's sentences as fit, one at least."""
    found = (each for each in document.findall(nodes.paragraph) if "reading-time" not in each["classes"])
    first, *more = SENTENCE.split(" ".join(next(found, nodes.paragraph()).astext().split()))
    for sentence in more:
        if len(f"{first} {sentence}") > LETTERS:
            break
        first = f"{first} {sentence}"
    return first


def tags(about: dict[str, str]) -> str:
    """Write meta tags; those of Open Graph (https://ogp.me) have a `property`."""
    kind = {name: "property" if name.startswith("og:") else "name" for name in about}
    return "".join(f'<meta {kind[name]}="{name}" content="{html.escape(text)}">\n' for name, text in about.items())


def introduce(app: Sphinx, page: str, _: str, context: dict[str, Any], document: nodes.document | None) -> None:
    """Describe a page in its head; an address of the picture needs the address of the book."""
    if document is None:
        return
    base, words = app.config.html_baseurl, description(document)
    title = html.unescape(TAG.sub("", context["title"]))
    about = {"description": words, "og:title": title, "og:description": words, "og:type": "article"}
    about["og:site_name"] = app.config.html_title or app.config.project
    if base:
        about["og:url"] = posixpath.join(base, f"{page}.html")
        about["og:image"] = posixpath.join(base, "_static", "shardlab", PICTURE.name)
    context["metatags"] = context.get("metatags", "") + tags(about)
    for mark, name in MOVING.items():
        if f'class="{mark}' in context.get("body", ""):
            app.add_css_file(f"shardlab/{name}.css")
            app.add_js_file(f"shardlab/{name}.js", defer="defer")


def copy_picture(app: Sphinx, error: Exception | None) -> None:
    """Put the picture where the address leads."""
    if error is None and app.builder.format == "html":
        shutil.copy(PICTURE, Path(app.outdir, "_static", "shardlab"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", introduce)
    app.connect("build-finished", copy_picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
