"""Sphinx extension: how long a page takes to read, and the words by which a reader may look for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from shardlab.files import reading

LEAST_MINUTES = 3  # what is shorter needs no announcement

# A reader's word -> what the book says instead. Compounds need no entry: `joined` writes them in one word.
ALSO = {"oom": "out of memory", "hang": "deadlock", "ddp": "distributeddataparallel", "fsdp": "fully_shard"}
COMPOUND = re.compile(r"[^\W\d_]+(?:[-_][^\W\d_]+)+")


def prose(document: nodes.document) -> Iterator[str]:
    """The text of titles, paragraphs and terms, without what cells show and without the settings of the page."""
    for node in document.findall(nodes.TextElement):
        if isinstance(node, nodes.title | nodes.paragraph | nodes.term) and not aside(node):
            yield node.astext()


def joined(text: str) -> set[str]:
    """Compounds in one word, as many people type them: all-reduce and all_reduce are allreduce."""
    return {re.sub("[-_]", "", word) for word in COMPOUND.findall(text.lower())}


class ReadingTime(SphinxTransform):
    """Put a line below the title of every page but the first of the book."""

    default_priority = 390  # before captions move into the figures of their cells

    def apply(self, **_: Any) -> None:
        """Say how many minutes the words take, and how many the words and the code."""
        needed = reading.minutes(Path(self.env.doc2path(self.env.docname)))
        title = next(iter(self.document.findall(nodes.title)), None)
        if title is not None and needed.all >= LEAST_MINUTES and self.env.docname != self.config.root_doc:
            words = f"Reading time: {needed}"
            title.parent.insert(1, nodes.paragraph("", words, classes=["reading-time"]))


class SearchWords(SphinxTransform):
    """Words that stand on no page but are typed into the search: as the page's keywords they are in its index."""

    default_priority = 390

    def apply(self, **_: Any) -> None:
        """Add one keywords element, which the search index reads."""
        text = " ".join(prose(self.document)).lower()
        found = joined(text) | {word for word, said in ALSO.items() if said in text}
        if found:
            self.document.insert(0, nodes.meta(name="keywords", lang="en", content=", ".join(sorted(found))))


def aside(node: nodes.Node | None) -> bool:
    """Inside a cell, or in the settings at the top of the file."""
    while node is not None:
        if isinstance(node, nodes.field | nodes.docinfo) or "nb_element" in getattr(node, "attributes", ()):
            return True
        node = node.parent
    return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both transforms."""
    app.add_transform(ReadingTime)
    app.add_transform(SearchWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
