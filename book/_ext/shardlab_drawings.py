"""Sphinx extension: the drawings stand in the page itself, so that their words have its face, its size and its colours.

Without Jupyter Book 1: a plugin of mystmd that writes the same HTML.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

TEXT = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")


def is_drawing(node: nodes.Node) -> bool:
    """Whether this is a picture of the book's own in SVG."""
    return isinstance(node, nodes.image) and str(node["uri"]).endswith(".svg")


def written(drawing: str, alt: str) -> str:
    """Write a drawing as a part of a page, with the sentence that tells what it shows."""
    shown = drawing.strip().replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)
    return f'<div class="drawing">{shown}</div>'


def source(image: nodes.Node) -> str:
    """Read the drawing that a page names."""
    return Path(image.document.settings.env.srcdir, image["uri"]).read_text(encoding="utf-8")


def words(image: nodes.Node) -> str:
    """List the labels of a drawing, each once; numbers alone say nothing outside of it."""
    labels = (html.unescape(TAG.sub("", found)) for found in TEXT.findall(source(image)))
    return ", ".join(dict.fromkeys(label for label in labels if re.search(r"[^\W\d]{3}", label)))


def put_in(app: Sphinx, document: nodes.document, _: str) -> None:
    """Replace each drawing of a page by its own text."""
    if app.builder.format == "html":
        for image in [*document.findall(is_drawing)]:
            image.replace_self(nodes.raw("", written(source(image), image.get("alt", "")), format="html"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("doctree-resolved", put_in)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
