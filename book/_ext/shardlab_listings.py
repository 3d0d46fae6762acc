"""Sphinx extension: a listing longer than a screen is marked, so that book.css shows its beginning.

Without Jupyter Book 1: a transform in a plugin of mystmd.
"""

from __future__ import annotations

from docutils import nodes
from shardlab_reading import aside
from sphinx.application import Sphinx

LINES = 60  # up to which a listing is shown whole


def mark(_: Sphinx, document: nodes.document, __: str) -> None:
    """Give long listings the class that listings.js looks for; the code of cells stays as it is."""
    for listing in document.findall(nodes.literal_block):
        if len(listing.astext().splitlines()) > LINES and not aside(listing):
            listing["classes"].append("long-listing")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("doctree-resolved", mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
