"""The back matter is complete: all hardware stands in its tables, every disagreement has sources and a decision."""

from __future__ import annotations

import ast
import html
import re
from typing import Any

import IPython.display
import jupytext
import pytest

from shardlab.costs.facts import hardware, nodes

from .conftest import ROOT

BOOK = ROOT / "book"
LEAST = 20  # disagreements


def tables(page: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """All that the cells of a page show, as HTML."""
    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in jupytext.read(BOOK / page, fmt="md:myst").cells:
        if cell.cell_type == "code":
            *body, last = ast.parse(cell.source).body
            exec(compile(ast.Module(body, []), page, "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), page, "eval"), names))
            else:
                exec(compile(ast.Module([last], []), page, "exec"), names)
    return "\n".join(each.data for each in shown if each is not None)


def test_all_hardware_stands_in_the_tables_with_a_link_to_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tables("hardware.md", monkeypatch)
    for name in [*hardware.CHIPS, *hardware.LINKS, *nodes.NODES]:
        assert re.search(rf'<a [^>]*href="https://[^"]*">{re.escape(html.escape(name))}</a>', text), name
    for name in [*hardware.CHIPS, *nodes.NODES]:  # and once more, with the whole source
        assert re.search(rf"<td[^>]*>{re.escape(html.escape(name))}</td><td[^>]*><a ", text), name


ENTRIES = re.split(r"^### ", (BOOK / "disagreements.md").read_text(), flags=re.MULTILINE)[1:]


def test_there_are_enough_disagreements() -> None:
    assert len({entry.splitlines()[0] for entry in ENTRIES}) >= LEAST


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.splitlines()[0])
def test_a_disagreement_has_sources_and_a_decision(entry: str) -> None:
    story, _, decision = entry.partition("\n**Here:** ")
    assert re.search(r"\{cite(:t)?\}`|\]\(https://", story), "who prints it?"
    assert decision, "what does this book use?"
