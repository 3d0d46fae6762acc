"""Sphinx extension: a page shows nothing of a starter that nobody has tried, and one word for folded cells in a row.

Without Jupyter Book 1: a transform in a plugin of mystmd.
"""

from __future__ import annotations

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx

UNTRIED = "is not tried yet: "  # in what the checker prints for a starter; a notebook's reader is told how to begin


def element(node: nodes.Node | None, name: str) -> bool:
    """Whether this is a cell of code, or the part of one, that myst-nb calls so."""
    return isinstance(node, nodes.container) and node.get("nb_element") == name


def fold(cell: nodes.Node | None) -> HideCodeCellNode | None:
    """The fold that a cell begins with, if its code is in it."""
    first = next(iter(cell.children), None) if cell is not None and element(cell, "cell_code") else None
    return first if isinstance(first, HideCodeCellNode) and "above-input" in first["classes"] else None


def quiet(_: Sphinx, document: nodes.document, __: str) -> None:
    """Remove the outputs of starters; a folded cell that shows nothing moves into the fold of the next one."""
    for output in [*document.findall(lambda node: element(node, "cell_code_output"))]:
        if UNTRIED in output.astext():
            output.parent.remove(output)
    for cell in [*document.findall(lambda node: element(node, "cell_code"))]:
        first, second = fold(cell), fold(cell.next_node(descend=False, siblings=True))
        if first and second and len(cell.children) == 1:
            second.children[:0] = first.children
            cell.parent.remove(cell)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("doctree-resolved", quiet)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
