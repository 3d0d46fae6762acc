"""Every statement of the table, and every line of the card, is held by a cell that ran on a built page, and a test."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any

import bs4
import pytest
import yaml

from shardlab.files import measured

from .conftest import ROOT

TABLE: dict[str, Any] = yaml.safe_load((ROOT / "book" / "statements.yaml").read_text())
STATEMENTS, CARD = TABLE["statements"], TABLE["card"]


@functools.cache
def page(site: Path, chapter: str) -> bs4.BeautifulSoup:
    return bs4.BeautifulSoup((site / "book" / f"{chapter}.html").read_text(), "lxml")


def text(node: bs4.Tag) -> str:
    """The words of a part of a page, with one blank between them."""
    return re.sub(r"\s+", " ", node.get_text(" ").replace("\N{NO-BREAK SPACE}", " "))


def section(site: Path, chapter: str, heading: str) -> bs4.Tag:
    """The section of a built page below a heading."""
    for each in page(site, chapter).find_all(["h2", "h3"]):
        if text(each).removesuffix("#").strip() == heading:
            return each.parent
    raise AssertionError(f"{chapter} has no heading {heading!r}")


def solid(words: str) -> str:
    """Words without blanks: a table aligns its numbers in parts."""
    return "".join(words.split())


def outputs(part: bs4.Tag) -> str:
    return " ".join(text(each) for each in part.select(".cell_output"))


def has(test: str) -> bool:
    """Whether a file of tests defines this function: `costs/test_units.py::test_text`."""
    path, _, name = test.partition("::")
    nodes = ast.parse((ROOT / "tests" / path).read_text()).body
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in nodes)


def test_there_are_twenty_three() -> None:
    assert len({row["statement"] for row in STATEMENTS}) == 23


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row["statement"][:40])
def test_a_statement_is_run_printed_and_tested(site: Path, row: dict[str, Any]) -> None:
    printed = solid(outputs(section(site, row["chapter"], row["section"])))
    assert [each for each in row["prints"] if solid(each) not in printed] == []
    assert has(row["test"])
    listed = page(site, "statements")
    (link,) = [a for a in listed.select("article a.reference") if text(a) == row["section"]][:1]
    name, _, anchor = link["href"].partition("#")
    assert page(site, Path(name).stem).find(id=anchor)


# ---- the card --------------------------------------------------------------------------------------------------------


def test_the_folders_and_packages_that_were_asked_for_are_there() -> None:
    assert [name for name in CARD["files"] if not (ROOT / name).exists()] == []
    pinned = (ROOT / "requirements.txt").read_text()
    assert [name for name in CARD["packages"] if not re.search(rf"^{name}==", pinned, re.MULTILINE)] == []


def cells(part: bs4.Tag) -> list[str]:
    """The code of the cells that ran and printed something or raised nothing: all that stand on a built page."""
    return [each.get_text() for each in part.select(".cell_input")]


@pytest.mark.parametrize("chapter", CARD["chapters"])
def test_a_chapter_imports_its_implementation_runs_ranks_and_has_a_control(site: Path, chapter: str) -> None:
    asked, built = CARD["chapters"][chapter], page(site, chapter)
    for exercises in built.find_all(id=re.compile("^exercises")):
        exercises.decompose()
    code = "\n".join(cells(built))
    assert re.search(rf"^from {re.escape(asked['imports'])}\b", code, re.MULTILINE)
    assert "launch.run(" in code
    labels = [text(each).strip() for each in built.select(":is(.explorer-control > label, .explorer-control legend)")]
    assert asked["control"] in labels, labels


@pytest.mark.parametrize("system", CARD["systems"])
def test_a_named_system_is_met_by_a_cell(site: Path, system: str) -> None:
    asked = CARD["systems"][system]
    assert any(asked["cell"] in cell for cell in cells(page(site, asked["chapter"])))


# ---- what a page says of a bench -------------------------------------------------------------------------------------


def test_what_the_page_says_of_mpi_is_what_was_measured() -> None:
    """Interconnects, the backend: who is ahead for short and for long buffers, on how many ranks."""
    ratio = {
        (row["ranks"], row["bytes"]): row["ratios"]["MPI / gloo"]["median"]
        for row in measured.results("collectives")["rows"]
    }
    assert max(ratio[ranks, 2**10] for ranks in (2, 4, 8)) < 1 / 6  # "a sixth of gloo's time or less", 0.165 on four
    assert ratio[2, 2**26] < 1 < ratio[8, 2**26]
