"""Sphinx extension: how long a page takes to read.

Without Jupyter Book 1: a transform in a plugin of mystmd.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from shardlab.files import reading


class ReadingTime(SphinxTransform):
    """Put a line below the title of every page whose header has its minutes."""

    default_priority = 390  # before captions move into the figures of their cells

    def apply(self, **_: Any) -> None:
        """Say how many minutes the words take, and how many the words and the code."""
        needed = reading.minutes(Path(self.env.doc2path(self.env.docname)))
        title = next(iter(self.document.findall(nodes.title)), None)
        if title is not None and needed is not None:
            words = f"Reading time: {needed}"
            title.parent.insert(1, nodes.paragraph("", words, classes=["reading-time"]))


def aside(node: nodes.Node | None) -> bool:
    """Inside a cell, or in the settings at the top of the file."""
    while node is not None:
        if isinstance(node, nodes.field | nodes.docinfo) or "nb_element" in getattr(node, "attributes", ()):
            return True
        node = node.parent
    return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(ReadingTime)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
