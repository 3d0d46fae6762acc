"""What a phone makes of code, outputs and tables: nothing is cut without a sign; long listings fold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shardlab_listings
from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document

from .conftest import ROOT

EXT = ROOT / "book" / "_ext"
LINES = "\n".join(f"<span>line_{number}</span>" for number in range(1, 151))
PAGE = f"""<!doctype html><meta name="viewport" content="width=device-width"><link rel="stylesheet" href="book.css">
<style>:is(pre, .pst-scrollable-table-container) {{ overflow: auto }} td {{ white-space: nowrap }}</style>
<script defer src="listings.js"></script><article class="bd-article">
<div class="long-listing"><div class="highlight"><pre>{LINES}</pre></div></div>
<div class="cell_output"><pre>{"a line of an output " * 20}{"x" * 200}</pre></div>
<div class="pst-scrollable-table-container"><table><caption>{"words " * 30}</caption>
<tr><td>{"cell " * 99}</table></div>"""
SIZES = '() => { const pre = document.querySelector(".highlight pre"); return [pre.clientHeight, pre.scrollHeight]; }'
WHOLE = '() => { const pre = document.querySelector(".highlight pre"); return pre.clientHeight === pre.scrollHeight; }'


@pytest.mark.parametrize(("length", "classes"), [(61, ["long-listing"]), (60, [])])
def test_a_listing_longer_than_a_screen_is_marked_and_no_cell_is(length: int, classes: list[str]) -> None:
    document = new_document("page", get_default_settings())
    listing, cell = (nodes.literal_block("", "line\n" * length) for _ in range(2))
    document += [listing, nodes.container("", cell, nb_element="cell_code_source")]
    shardlab_listings.mark(document, document, "page")  # type: ignore[arg-type]
    assert (listing["classes"], cell["classes"]) == (classes, [])


@pytest.fixture
def address(tmp_path: Path) -> str:
    for name in ("book.css", "listings.js"):
        (tmp_path / name).write_text((EXT / name).read_text())
    (tmp_path / "page.html").write_text(PAGE)
    return f"{tmp_path.as_uri()}/page.html"


@pytest.fixture
def phone(browser: Any, address: str) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(address)
    yield tab
    tab.close()


def test_a_long_listing_opens_at_its_button_and_where_a_word_is_found(phone: Any) -> None:
    button = phone.locator(".long-listing + button")
    for act in (button.click, lambda: phone.evaluate('document.querySelector("pre span:last-child").scrollIntoView()')):
        shown, whole = phone.evaluate(SIZES)
        assert shown < 844 < whole
        assert (button.inner_text(), button.get_attribute("aria-expanded")) == ("Show all 150 lines", "false")
        act()
        phone.wait_for_function(WHOLE)
        assert button.get_attribute("aria-expanded") == "true"
        button.click()


def test_a_long_listing_is_whole_on_paper_and_without_scripts(phone: Any, browser: Any, address: str) -> None:
    phone.emulate_media(media="print")
    assert phone.evaluate(WHOLE)
    assert not phone.locator("button").is_visible()
    plain = browser.new_page(java_script_enabled=False)
    plain.goto(address)
    assert plain.locator(".highlight pre").bounding_box()["height"] > 150 * 10
    plain.close()


def test_outputs_break_code_and_tables_show_that_they_go_on_and_captions_are_seen_whole(phone: Any) -> None:
    assert phone.locator(".cell_output pre").evaluate("pre => pre.clientWidth === pre.scrollWidth")
    for box in (".highlight pre", ".pst-scrollable-table-container"):
        assert "local" in phone.locator(box).evaluate("box => getComputedStyle(box).backgroundAttachment")
    table, caption = (phone.locator(name).bounding_box() for name in ("table", "caption"))
    assert caption["width"] < 390 < table["width"]
