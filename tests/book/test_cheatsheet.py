"""The cheat sheet prints on one sheet of paper, with all of its tables on it and in letters that can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT

PAGE = "book/cheatsheet"
SMALLEST = 6.5  # points: of footnotes in print
SECTIONS = re.findall(r"^## (.*)$", (ROOT / f"{PAGE}.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_it_prints_on_one_sheet(browser: Any, site: Path, paper: str) -> None:
    tab = browser.new_page()
    tab.goto(f"{site.as_uri()}/{PAGE}.html")
    tab.evaluate("shardlabFormulas()")
    sheets = tab.pdf(format=paper)
    tab.close()
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", sheets)) == 1


def test_what_is_printed(browser: Any, site: Path) -> None:
    """Every section and table, inside the sheet; no buttons, no code."""
    tab = browser.new_page(viewport={"width": 726, "height": 1055})  # A4 less its margins
    tab.goto(f"{site.as_uri()}/{PAGE}.html")
    tab.emulate_media(media="print")
    tab.evaluate("shardlabFormulas()")
    shown = tab.evaluate("""() => ["h2", "table", "summary", "pre"]
        .flatMap((name) => [...document.querySelectorAll(`article ${name}`)])
        .map((x) => [x.tagName, x.getBoundingClientRect(), parseFloat(getComputedStyle(x).fontSize)])
        .filter(([, box]) => box.width > 0).map(([tag, box, size]) => [tag, box.left, box.right, box.bottom, size])""")
    tab.close()
    tags = [tag for tag, *_ in shown]
    assert tags.count("H2") == tags.count("TABLE") == len(SECTIONS)
    assert not {"SUMMARY", "PRE"} & set(tags)
    assert all(left >= 0 and right <= 727 and bottom <= 1056 for _, left, right, bottom, _ in shown)
    assert min(size for *_, size in shown) * 72 / 96 >= SMALLEST
