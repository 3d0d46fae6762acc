"""The minutes of a page: what counts and at which rate. No chapter takes too long, or hides its code."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from pathlib import Path
from statistics import median

import pytest

from shardlab import exercises
from shardlab.files import myst, reading

BOOK = Path(__file__).parents[2] / "book"
WORD = reading.SECONDS["word"]
TEXT, MAIN, SECOND = 40, 75, 25  # minutes of a chapter's text, of it with code, of its second sitting
MIN_OPEN = 0.5  # of the lines of code that a chapter shows
MAX_NAMES, MAX_USUAL_NAMES = 7, 6  # that the set-up of a chapter imports; the second is for half of the chapters
IMPORTS = ast.Import | ast.ImportFrom


def page(tmp_path: Path, text: str) -> reading.Minutes:
    path = tmp_path / "page.md"
    path.write_text(text)
    return reading.minutes(path)


@pytest.mark.parametrize(
    ("text", "words", "everything"),
    [
        ("word " * 110, 60, 60),
        ("---\nkernelspec: {name: python3}\n---\n" + "word " * 110, 60, 60),
        ("a [link](https://an.address/of/many/words) {cite}`nobody`", 2 * WORD, 2 * WORD),
        ("$a + b$", 4, 4),
        ("$$\na + b = c\n$$", 45, 45),
        ("> a caption", 2 * WORD, 90 + 2 * WORD),
        ("```{code-cell} python\nfrom a import b\n\nx = 1\n\ny = 2\n```", 0, 16),
        ("```{code-cell} python\n:tags: [hide-input]\n\nx = 1\n```", 0, 0),
        ("```{code-cell} python\n:tags: [hide-input]\n\ntable(x)\n```", 0, 90),
        ("```{code-cell} python\n:tags: [hide-cell]\n\ntable(x)\n```", 0, 0),
        ("```{code-cell} python\n:tags: [remove-input]\n\nexplorers.ring()\n```", 0, 240),
        ("```{code-cell} python\n:tags: [remove-input]\n\nguess.number(1)\n```", 0, 90),
        ("```\na listing\n\nof two lines\n```", 0, 12),
        ("```{figure} a.svg\n:alt: not read aloud\n\nword\n```", WORD, 90 + WORD),
        ("```{admonition} Deeper\n:class: dropdown\n\nword\n```", 0, 0),
        ("````{admonition} Deeper\n:class: dropdown\n\n```\nx\n```\n````", 0, 0),
        ("```{admonition} What is wrong?\n:class: dropdown\n\nword\n```", 4 * WORD, 180 + 4 * WORD),
        ("## Exercises\n\n" + "word " * 110, 0, 0),
    ],
)
def test_each_thing_has_its_seconds(tmp_path: Path, text: str, words: float, everything: float) -> None:
    found = page(tmp_path, text)
    assert (60 * found.text, 60 * found.all, found.second) == pytest.approx((words, everything, 0))


def test_a_second_sitting_counts_apart(tmp_path: Path) -> None:
    found = page(tmp_path, "word " * 110 + "\n## Second sitting: deeper\n" + "word " * 217 + "\n## The end\n")
    assert (found.text, found.all) == pytest.approx((1 + 2 / 110, 1 + 2 / 110))
    assert found.second == pytest.approx(2)


def test_a_listing_is_as_long_as_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("class A:\n    def f(self):\n        return 1\n\n\nB = 2\nC = 3\n")
    for options, lines in (":pyobject: A.f", 2), (":pyobject: A", 3), (':start-at: "B ="', 2), ("", 5):
        found = page(tmp_path, f"```{{literalinclude}} code.py\n{options}\n```")
        assert 60 * found.all == pytest.approx(lines * reading.SECONDS["listing_line"]), options
    assert page(tmp_path, "```{literalinclude} ../code/shardlab/files/project.py\n```").all > 0


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ((2.1, 2.1, 0), "about 3 minutes"),
        ((12, 31, 0), "about 15 minutes for the text, 35 with the code"),
        ((12, 31, 20), "about 15 minutes for the text, 35 with the code, and 20 for the second sitting"),
    ],
)
def test_minutes_are_rounded_up_and_said(minutes: tuple[float, float, float], said: str) -> None:
    assert str(reading.Minutes(*minutes)) == said


def test_blocks_know_their_section_and_what_is_around_them() -> None:
    text = "intro\n\n## One\n\n````{note} Title\n```{code-cell} python\n:tags: [x]\n\n:not: an option\n```\n````\nend"
    found = [(block.section, block.directive, block.text) for block in myst.blocks(text)]
    cell = ("One", "code-cell", ":not: an option")
    assert found == [("", "prose", "intro"), cell, ("One", "note", ""), ("One", "prose", "## One\n\nend")]


@pytest.mark.parametrize("chapter", exercises.CHAPTERS)
def test_a_chapter_takes_one_sitting_or_two(chapter: str) -> None:
    found = reading.minutes(BOOK / f"{chapter}.md")
    assert found.text <= TEXT
    assert found.all <= MAIN
    assert found.second <= SECOND


@functools.cache
def cells(chapter: str) -> list[myst.PageBlock]:
    """The code cells that a chapter shows."""
    found = myst.blocks((BOOK / f"{chapter}.md").read_text())
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
    lines = [reading.filled(cell.text) for cell in cells(chapter)]
    assert sum(itertools.compress(lines, is_open)) >= MIN_OPEN * sum(lines)


def test_the_syllabi_have_the_minutes_of_the_pages() -> None:
    row = re.compile(r"^\| \d+ \[.*?\]\((\w+)\.md\) \|.*?\| (\d+ / \d+ / \S+) \|", re.MULTILINE)
    rows = row.findall((BOOK / "course.md").read_text())
    assert len(rows) == 3 + 6 + len(exercises.CHAPTERS)
    for stem, printed in rows:
        needed = reading.minutes(BOOK / f"{stem}.md")
        parts = (needed.text, needed.all, needed.second)
        assert printed == " / ".join(str(reading.rounded(each)) if each else "\N{EN DASH}" for each in parts), stem
