"""The puzzles of missing lines in a browser: none moves the page, and the question stays on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardlab.explorers import missing
from shardlab.ranks.players.lines import read

from .conftest import picture_page

PLACES = """(at) => {
    const part = (each) => document.querySelector(each).getBoundingClientRect(), lines = part(".missing-lines");
    const seen = document.querySelectorAll(".missing-lines li")[at].getBoundingClientRect();
    const inside = lines.top < seen.top && seen.bottom < lines.bottom + 1; // a pixel may have parts
    return [lines.top - part(".moving-steps").top, part(".missing").height, inside];
}"""
CHOOSE = "(at) => document.querySelectorAll('.missing-lines button')[at].click()"


@pytest.fixture(scope="module")
def picture() -> missing.Missing:
    return missing.Missing(read)


# Pixels that hold all, of a window of 844 on a phone and 800 beside it.
@pytest.mark.parametrize(("width", "most"), [(374, 780), (720, 640)])
def test_no_puzzle_moves_the_page_and_all_fits_one_screen(
    browser: Any, picture: missing.Missing, tmp_path: Path, width: int, most: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    tab.goto(picture_page(tmp_path, "missing", picture).as_uri())
    tab.evaluate("document.fonts.ready")
    seen = set()
    for puzzle in picture.puzzles:
        (_, first, _), inputs, healed = next(puzzle.red()), puzzle.wrong.inputs, puzzle.wrong.refused
        seen.add(tuple(tab.evaluate(PLACES, first)))
        for at in (0 if healed > inputs else 1, healed - inputs):
            tab.evaluate(CHOOSE, at)
        seen.add(tuple(tab.evaluate(PLACES, puzzle.wrong.gap)))
        tab.get_by_role("button", name="Next").click()
    ((_, high, in_view),) = seen
    assert high < most
    assert in_view, "the first wrong number, and the line that was missing"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.close()
