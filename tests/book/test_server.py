"""The picture of a server in a browser: two GPUs are touched or chosen with keys, and the words above it follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardlab.explorers import server

from .conftest import picture_page


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that has the picture and nothing else."""
    return picture_page(tmp_path_factory.mktemp("server"), "server", server.TwoGpus())


@pytest.fixture
def tab(browser: Any, alone: Path) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    tab.goto(alone.as_uri())
    yield tab
    tab.close()


def said(tab: Any) -> str:
    return " ".join(tab.locator(".server-state").inner_text().split())


def test_touching_two_gpus_sends_a_message_and_the_address_keeps_the_choice(tab: Any) -> None:
    assert said(tab).startswith("From GPU 0 to GPU 5: 6 GB/s, so 1 GB takes 167 ms. The narrowest wire is CPU 0 →")
    high = tab.locator(".moving-stage").bounding_box()["height"]
    for touched in ("GPU 3", "GPU 2"):
        tab.get_by_role("button", name=touched).click()
    assert said(tab).startswith("From GPU 3 to GPU 2: 50 GB/s, so 1 GB takes 20 ms. No wire of the path is narrower")
    tab.get_by_role("radio", name="DGX H100").check()
    tab.get_by_role("radio", name="the receiver").check()
    tab.get_by_role("button", name="another server").click()
    tab.get_by_role("radio", name="off", exact=True).check()
    assert said(tab).startswith("From GPU 3 to another server: 31.5 GB/s, so 1 GB takes 31.7 ms. The narrowest wires")
    assert said(tab).endswith("The orange message shares wires with it.")
    assert tab.locator(".moving-stage").bounding_box()["height"] == high
    words = said(tab)
    tab.reload()
    assert said(tab) == words


def test_gpudirect_is_a_choice_where_it_changes_the_path_and_keeps_its_place(tab: Any) -> None:
    direct = tab.get_by_role("radio", name="off", exact=True)
    assert direct.is_disabled()
    assert tab.get_by_text("GPUDirect: no difference here").is_visible()
    high = tab.locator(".moving-stage").bounding_box()["height"]
    for part in ("GPU 0", "another server"):
        tab.get_by_role("button", name=part).click()
    assert direct.is_enabled()
    drawn = tab.locator(".server-map").inner_html()
    direct.check()
    assert tab.locator(".server-map").inner_html() != drawn
    assert tab.locator(".moving-stage").bounding_box()["height"] == high


def test_what_a_finger_touches_is_high_enough_and_choices_look_like_buttons(tab: Any) -> None:
    high = "(path) => [...document.querySelectorAll(path)].map((each) => each.offsetHeight)"
    assert {*tab.evaluate(high, ".moving-choice label, .moving-steps button, .server-clock button")} == {32}
    assert min(tab.evaluate(high, "summary")) >= 24


def test_the_legend_is_a_scale_each_line_as_wide_as_in_the_picture(tab: Any) -> None:
    for machine in server.SERVERS:
        tab.get_by_role("radio", name=machine).check()
        widths = """(path) => [...document.querySelectorAll(path)].map((each) =>
            Math.round(100 * parseFloat(each.getAttribute("stroke-width")) * each.getScreenCTM().a) / 100)"""
        legend = tab.evaluate(widths, ".server-key path")
        assert legend == sorted(legend, reverse=True)
        assert set(legend) == set(tab.evaluate(widths, ".server-map .server-wire"))


def test_keys_choose_as_fingers_do(tab: Any) -> None:
    for part in ("GPU 1", "GPU 4"):
        tab.get_by_role("button", name=part).press("Enter")
    assert said(tab).startswith("From GPU 1 to GPU 4: 6 GB/s")
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')") == "GPU 4, receives"
    tab.keyboard.press("ArrowRight")
    assert said(tab).startswith("From GPU 1 to GPU 5: 50 GB/s")


def test_a_drop_runs_unless_the_reader_wants_no_motion(tab: Any) -> None:
    drop, send = tab.locator(".server-drop"), tab.get_by_role("button", name="Send 1 GB")
    clock = tab.locator(".server-clock output")
    send.click()
    assert not drop.is_visible()
    assert clock.inner_text() == "167\u00a0ms"
    tab.emulate_media(reduced_motion="no-preference")
    send.click()
    assert drop.is_visible()
    assert clock.inner_text().endswith("20 times slowed")


def test_words_are_legible_on_a_phone(tab: Any) -> None:
    sizes = tab.evaluate(
        "[...document.querySelectorAll('.server svg text')].map((each) =>"
        " parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a)"
    )
    assert min(sizes) >= 12
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
