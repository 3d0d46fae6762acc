"""Sphinx extension: every table with a caption has a number, those that cells print and those of the page alike.

Sphinx numbers what stands in the document. A cell's table is HTML, so a mark with an id stands before it; when all
numbers are known, each mark gives its own to the caption of its table.

Without Jupyter Book 1: mystmd numbers tables of the page; those of cells need a plugin.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

CAPTION = "<caption>"


class NumberedTable(nodes.General, nodes.Element):
    """The mark of a table in a cell's HTML."""


class Marks(SphinxTransform):
    """Put a mark before each cell's output for every caption in it."""

    default_priority = 410  # after captions of figures

    def apply(self, **_: Any) -> None:
        """Find the captions in the HTML that cells print."""
        for output in [x for x in self.document.findall(nodes.container) if x.get("nb_element") == "cell_code_output"]:
            for _caption in range(sum(raw.astext().count(CAPTION) for raw in html_in(output))):
                mark = NumberedTable()
                self.document.set_id(mark, suggested_prefix="table-")
                output.insert(0, mark)


def title(_: nodes.Node) -> str:
    """What Sphinx asks of whatever it numbers; a reference would show it."""
    return "table"


def html_in(part: nodes.Element) -> list[nodes.raw]:
    """The pieces of HTML in a part of the document."""
    return [raw for raw in part.findall(nodes.raw) if "html" in raw.get("format", "").split()]


def number(app: Sphinx, document: nodes.document, page: str) -> None:
    """Write the numbers into the captions, and take the marks away."""
    numbers = app.env.toc_fignumbers.get(page, {}).get("table", {})
    for output in [x for x in document.findall(nodes.container) if x.get("nb_element") == "cell_code_output"]:
        marks = [each for each in output.children if isinstance(each, NumberedTable)]
        labels = [".".join(map(str, numbers[mark["ids"][0]])) for mark in marks]
        for mark in marks:
            output.remove(mark)
        labels.sort(key=lambda label: [int(part) for part in label.split(".")])
        for raw in html_in(output):
            pieces = raw.astext().split(CAPTION)
            text = pieces[0]
            for piece in pieces[1:]:
                text += f'{CAPTION}<span class="caption-number">Table {labels.pop(0)} </span>{piece}'
            raw.children = [nodes.Text(text)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_enumerable_node(NumberedTable, "table", title)
    app.add_transform(Marks)
    app.connect("doctree-resolved", number)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
