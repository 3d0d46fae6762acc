"""Sphinx extension: the search finds sections, with excerpts that need no network; search.js asks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from shardlab_reading import ALSO, aside
from sphinx.application import Sphinx

SCRIPTS = "".join(f'<script defer src="_static/shardlab/{name}.js"></script>' for name in ("sections", "search"))


def sections(page: str, document: nodes.document) -> Iterator[dict[str, str]]:
    """The sections of a page: where each begins, its title, its page's title, and its words without inner sections."""
    (name, *_) = [node.astext() for node in document.findall(nodes.title)] or [page]
    for section in document.findall(nodes.section):
        words = [node.astext() for node in section.findall(words_of) if within(node) is section and not aside(node)]
        title, text = section.next_node(nodes.title).astext(), " ".join(" ".join(words).split())
        also = " ".join(word for word, said in ALSO.items() if said in text.lower())
        yield {"page": page, "id": section["ids"][0], "name": name, "title": title, "text": text, "also": also}


def words_of(node: nodes.Node) -> bool:
    """Whether this is a paragraph or a term: its words can be read on their own."""
    return isinstance(node, nodes.paragraph | nodes.term | nodes.caption)


def within(node: nodes.Node) -> nodes.Node | None:
    """The innermost section around a node."""
    while node is not None and not isinstance(node, nodes.section):
        node = node.parent
    return node


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all sections beside the scripts of the book."""
    if error is None and app.builder.format == "html":
        found = [each for page in app.env.found_docs for each in sections(page, app.env.get_doctree(page))]
        text = json.dumps(sorted(found, key=lambda each: each["page"]), ensure_ascii=False, separators=(",", ":"))
        target = Path(app.outdir, "_static", "shardlab", "sections.js")
        target.write_text(f"window.shardlabSections = {text};\n", encoding="utf-8")


def load(_: Sphinx, page: str, __: str, context: dict[str, Any], ___: Any) -> None:
    """Let the search page, and no other, load the sections."""
    if page == "search":
        context["metatags"] = context.get("metatags", "") + SCRIPTS


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", load)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
