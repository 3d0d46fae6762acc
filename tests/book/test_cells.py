"""A chapter's code: its set-up imports few names, and most of it is open."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from statistics import median

import bs4
import pytest
import shardlab_cells
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from myst_nb.sphinx_ import HideCodeCellNode

from shardlab import exercises
from shardlab.exercises import untouched

from . import myst
from .conftest import ROOT

MIN_OPEN = 0.5  # of the lines of code that a chapter shows
MAX_NAMES, MAX_USUAL_NAMES = 12, 6  # that the set-up of a chapter imports; the second is for half of the chapters
PRINTED = ".cell_output .stream pre, .cell_output .text_plain pre"
REPR = re.compile(r"\{'|\('|\['|\w\(\w+=|\[-?\d+(?:\.\d+)?(?:, -?\d+(?:\.\d+)?)*\]")
STYLE = re.compile(r"\d%|\d x [A-Z]|(?<![\w.,:/=])[1-9]\d{3} (?:tokens|samples|ranks|GPUs|bytes)\b")  # 5 %, ×, 4,096
BARE = re.compile(r"(?<![\w.,])(?:-?\d+(?:\.\d+)? ){3}-?\d+")  # a list without its commas
LONG = re.compile(r"\d[\d,]*\.\d+")
IMPORTS = ast.Import | ast.ImportFrom


def test_blocks_know_their_section_and_what_is_around_them() -> None:
    text = "intro\n\n## One\n\n````{note} Title\n```{code-cell} python\n:tags: [x]\n\n:not: an option\n```\n````\nend"
    found = [(block.section, block.directive, block.text) for block in myst.blocks(text)]
    cell = ("One", "code-cell", ":not: an option")
    assert found == [("", "prose", "intro"), cell, ("One", "note", ""), ("One", "prose", "## One\n\nend")]


def cells(chapter: str) -> list[myst.PageBlock]:
    """The code cells that a chapter shows."""
    found = myst.blocks((ROOT / "book" / f"{chapter}.md").read_text())
    cells = [block for block in found if block.directive == "code-cell"]
    return [cell for cell in cells if "remove-input" not in cell.options.get("tags", "")]


def names_of_set_up(chapter: str) -> int:
    """Count what the first cell with an import brings."""
    imported = [[node for node in ast.parse(cell.text).body if isinstance(node, IMPORTS)] for cell in cells(chapter)]
    first = next(nodes for nodes in imported if nodes)
    return sum(len(node.names) for node in first)


def test_a_set_up_imports_few_names() -> None:
    """What one part of a chapter needs is imported there: a reader sees where it comes from."""
    counts = {chapter: names_of_set_up(chapter) for chapter in exercises.CHAPTERS}
    assert max(counts.values()) <= MAX_NAMES, counts
    assert median(counts.values()) <= MAX_USUAL_NAMES, counts


@pytest.mark.parametrize("chapter", exercises.CHAPTERS)
def test_most_code_of_a_chapter_is_open(chapter: str) -> None:
    """What is not worth reading is deleted, or a function of the package."""
    is_open = ["hide-" not in cell.options.get("tags", "") for cell in cells(chapter)]
    lines = [sum(bool(line.strip()) for line in cell.text.splitlines()) for cell in cells(chapter)]
    assert sum(itertools.compress(lines, is_open)) >= MIN_OPEN * sum(lines)


@pytest.mark.parametrize("text", ["17.5%", "on 4 x DGX H100", "with 2048 tokens", "0.123456", "Run(tp=8)", "4 3 2 1"])
def test_a_number_in_another_style_is_unread(text: str) -> None:
    assert unread(text)
    assert not unread("17.5 % on 4 × DGX H100 with 2,048 tokens of 2048")


def unread(output: str) -> list[str]:
    """What a reader would have to decode: values as Python writes them, six digits and more, a style of their own."""
    digits = [number for number in LONG.findall(output) if len(re.sub(r"\D", "", number).lstrip("0")) > 5]
    return REPR.findall(output) + STYLE.findall(output) + BARE.findall(output) + digits


@pytest.mark.parametrize("chapter", exercises.CHAPTERS)
def test_outputs_are_sentences_and_tables(site: Path, chapter: str) -> None:
    """A checker's report quotes a learner's values and a case's tensors; lines of a rank's log are not ours."""
    built = bs4.BeautifulSoup((site / "book" / f"{chapter}.html").read_text(), "html.parser")
    outputs = [re.sub(r"(?m)^\[rank .*$", "", each.get_text()) for each in built.select(PRINTED)]
    outputs += [each.get_text() for each in built.select("figcaption, .cell_output caption")]
    assert [each for each in outputs if "Smallest failing case" not in each and unread(each)] == []


def cell(*parts: nodes.Node, folded: bool = False) -> nodes.container:
    """A cell as myst-nb makes it: its code, and what it shows."""
    code: nodes.Element = nodes.container("", nodes.literal_block("", "code"), nb_element="cell_code_source")
    if folded:
        code = HideCodeCellNode("", code, classes=["above-input"])
    return nodes.container("", code, *parts, nb_element="cell_code")


def shows(text: str) -> nodes.container:
    return nodes.container("", nodes.literal_block("", text), nb_element="cell_code_output")


def test_starters_show_nothing_and_folded_cells_in_a_row_have_one_fold() -> None:
    """Whatever is seen stays where it is: the output of a cell, and a cell that is open or stands after a sentence."""
    document = new_document("page", get_default_settings())
    starter = cell(shows(untouched.report(exercises.find("memory.model_states")).reason))
    row = cell(folded=True), cell(folded=True), cell(shows("a table"), folded=True)
    after, opened = cell(folded=True), cell(shows("a sum"))
    document += [starter, *row, after, nodes.paragraph("", "A sentence."), cell(folded=True), opened]
    shardlab_cells.quiet(document, document, "page")  # type: ignore[arg-type]
    assert [len(each.children) for each in document.children] == [1, 2, 1, 1, 1, 2]
    assert [len(each.children) for each in document.findall(HideCodeCellNode)] == [3, 1, 1]


@pytest.mark.parametrize("chapter", exercises.CHAPTERS)
def test_cells_of_a_page_show_something_and_no_two_folds_touch(site: Path, chapter: str) -> None:
    built = bs4.BeautifulSoup((site / "book" / f"{chapter}.html").read_text(), "html.parser")
    outputs = built.select(".cell_output")
    assert [each for each in outputs if not each.get_text().strip() and not each.select("svg, img")] == []
    assert shardlab_cells.UNTRIED not in "".join(each.get_text() for each in outputs)
    assert built.select(".cell:has(> details.hide:only-child) + .cell:has(> details.hide:first-child)") == []
