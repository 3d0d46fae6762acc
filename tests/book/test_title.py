"""The title page's picture in a browser: what the reader cuts with and what it changes are seen together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardlab.explorers import title

from .conftest import picture_page

PLACES = """[...document.querySelectorAll(".cuts li button, .cuts select, .cuts-state, .cuts-picture, .cuts-meters")]
    .map((part) => ({ name: part.className || part.localName, ...part.getBoundingClientRect().toJSON() }))"""

STOPS = """[...document.querySelectorAll(".cuts :is(button, select, summary)")]
    .map((stop) => stop.closest("li, .moving-stage, details").getBoundingClientRect().top)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_page(tmp_path_factory.mktemp("title"), "title", title.Cuts())


# Pixels that hold all, of a window of 844 on a phone and 800 beside it: above it stands a header, or the page's title.
@pytest.mark.parametrize(("width", "most"), [(374, 700), (1024, 555)])
def test_controls_words_and_picture_fit_one_screen_and_no_cut_moves_them(
    browser: Any, page: Path, width: int, most: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    tab.goto(page.as_uri())
    tab.evaluate("document.fonts.ready")
    seen, offered = [], tab.locator(".cuts option").all_inner_texts()
    for _ in title.scenes():
        parts = tab.evaluate(PLACES)
        picture = next(part for part in parts if part["name"].startswith("cuts-picture"))
        above = [part["top"] for part in parts if part["bottom"] <= picture["top"]]
        assert len(above) == (3 if width < 720 else 3 + len(title.scenes()))  # two selects and the words; the knives
        assert picture["bottom"] - min(above) < most
        fields = [part["right"] for part in parts if part["name"] == "select"]
        seen.append((picture["top"], picture["bottom"], *fields))
        tab.get_by_role("button", name="Next").click()
    assert len(set(seen)) == 1
    shown = [(field.input_value(), field.is_disabled()) for field in tab.locator(".cuts select").all()]
    assert shown == [(title.MIXTURE, True), ("2,048", True)], "the fields have what the last step draws"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tops = tab.evaluate(STOPS)
    assert len(tops) > len(title.scenes())
    assert tops == sorted(tops)
    tab.get_by_role("button", name="Back").click()
    assert tab.locator(".cuts option").all_inner_texts() == offered
    assert all(offered)
    tab.close()
