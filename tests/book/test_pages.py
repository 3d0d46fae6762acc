"""The built pages in a real browser: every page of the contents, every explorer on it, from disk and over http."""

from __future__ import annotations

import base64
import functools
import gzip
import importlib
import json
import pkgutil
import re
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
import yaml

import shardlab.explorers
from shardlab import exercises
from shardlab.explorers import axes, page
from shardlab.explorers.explorer import Explorer
from shardlab.explorers.words import NUMBER
from shardlab.files import reading
from tests.figures.drawn import alike

from .conftest import ROOT, SIZES, Opening, draw_all, dress, explorers, opened

CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text())
LISTED = [CONTENTS["root"], *(entry["file"] for part in CONTENTS["parts"] for entry in part["chapters"])]
PAGES = [name for name in LISTED if not name.startswith("book/reference/")]  # see test_reference.py
EVERY_PAGE = pytest.mark.parametrize("page_name", PAGES, scope="package")
MOST_BYTES = 480_000  # of a page, a quarter of that when compressed; scripts, fonts and styles are shared by all


# What each page is asked on a phone, it is asked over http, by a link that the screen has made.


@pytest.fixture
def tab(screen: Any) -> Any:
    """The page on a screen as it was when it was opened, whatever the test before has changed."""
    dress(screen, "screen", "light")
    for block in with_controls(screen):
        block.evaluate(RESET)
    return screen


class Visit(NamedTuple):
    """A page that somebody was sent a link to."""

    tab: Any
    sent: list[int]  # the states of the explorers that the link names
    restored: list[int]  # those that came up
    mute: int  # figures that would have been neither drawn nor told by their table, had it been printed at once


@pytest.fixture(scope="module")
def visit(screen: Any, browser: Any, served: str, page_name: str) -> Iterator[Visit]:
    """The page on a phone, every control at its other end."""
    dress(screen, "screen", "light")
    for control in screen.query_selector_all("[data-control]"):
        control.evaluate(OTHER_END)
    screen.wait_for_function(SETTLED)
    sent = [state_of(block) for block in with_controls(screen)]
    link = f"{page_name}.html{screen.evaluate('location.hash')}"
    with opened(browser, served, link, "phone", color_scheme="light") as tab:
        for block in with_controls(tab)[-1:]:  # the one that was touched last
            leads_there = "block => Math.abs(block.getBoundingClientRect().top) < 200"
            tab.wait_for_function(leads_there, arg=block)
        mute = tab.evaluate(PRINT)
        draw_all(tab)
        yield Visit(tab, sent, [state_of(block) for block in with_controls(tab)], mute)


@pytest.fixture
def phone(visit: Visit) -> Any:
    return visit.tab


def state_of(block: Any) -> int:
    return int(block.get_attribute("data-state"))


def drawing(block: Any) -> str:
    """What plotly was given last, as text, once the figure shows what its controls say."""
    return str(block.evaluate(DRAWING))


def with_controls(tab: Any) -> list[Any]:
    return [block for block in explorers(tab) if block.query_selector("[data-control]")]


def plain(tab: Any) -> list[Any]:
    return [block for block in explorers(tab) if not block.query_selector("[data-control]")]


class Look(NamedTuple):
    """What is seen of one state."""

    data: Any  # what plotly was given
    faults: list[str]  # words that are cut off, pairs of which one covers the other, and rows without their name


def look_at(block: Any) -> dict[int, Look]:
    """The first state of an explorer and about twelve others, one after another."""
    count = block.evaluate(FIND + "return explorer.count; }")
    return {
        state: Look(block.evaluate(DRAWN_DATA, state), block.evaluate(FAULTS))
        for state in sorted({state_of(block), *range(0, count, max(1, count // 12))})
    }


@pytest.fixture(scope="module")
def looks(screen: Any) -> dict[str, dict[int, Look]]:
    """What is seen of each explorer on a screen."""
    dress(screen, "screen", "light")
    return {block.get_attribute("data-explorer"): look_at(block) for block in with_controls(screen)}


FAULTS = """(block) => {
    const box = block.querySelector(".explorer-plot").getBoundingClientRect();
    const shown = (text) => text.getClientRects().length;  // plotly hides numbers that have no room in their bars
    const words = [...block.querySelectorAll(".main-svg text")].filter(shown)
        .map((text) => [text.textContent, text.getBoundingClientRect()]);
    const cut = ({ left, right, top, bottom }) =>
        left < box.left - 1 || right > box.right + 1 || top < box.top - 1 || bottom > box.bottom + 1;
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
                        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    const covered = words.flatMap(([one, a], i) =>
        words.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => `${one} | ${other}`));
    const { _fullLayout: layout } = block.querySelector(".explorer-plot");
    const axes = Object.entries(layout).filter(([key]) => /^yaxis/.test(key));
    const told = (axis) => [...block.querySelectorAll(`.${axis._id}tick text`)].map((text) => text.textContent).join();
    const lost = axes.filter(([, axis]) => axis.type === "category" && axis.showticklabels)
        .flatMap(([, axis]) => (axis.ticktext ?? axis._categories)
            .filter((name) => !told(axis).includes(name.replaceAll("<br>", ""))));
    return [...words.filter(([, place]) => cut(place)).map(([word]) => word), ...covered, ...lost];
}"""


@functools.cache
def python_explorers() -> dict[str, Explorer]:
    """Every explorer of the package by its name in the page: functions without arguments that return an Explorer."""
    found: dict[str, Explorer] = {}
    for module in pkgutil.iter_modules(shardlab.explorers.__path__):
        for make in vars(importlib.import_module(f"shardlab.explorers.{module.name}")).values():
            if callable(make) and not isinstance(make, type) and returns_explorer(make):
                built = make()
                found[built.name] = built
    return found


def returns_explorer(make: Callable[..., Any]) -> bool:
    try:
        return typing.get_type_hints(make).get("return") is Explorer
    except (NameError, TypeError):  # a name that exists for the type checker alone, or no function at all
        return False


# ---- pages


@EVERY_PAGE
def test_a_page_is_light(site: Path, page_name: str) -> None:
    assert (site / f"{page_name}.html").stat().st_size < MOST_BYTES


def kinds(tree: Any, inside: str = "") -> Iterator[str]:
    """The types of the traces in what columns.py has joined."""
    if isinstance(tree, dict):
        for key, branch in tree.items():
            own = {"data": "trace", "type": "kind" if inside == "trace" else ""}.get(key, inside)
            yield from kinds(branch, "" if key.startswith("error_") else own)
    elif isinstance(tree, list):
        for branch in tree:
            yield from kinds(branch, inside)
    elif inside == "kind":
        yield tree


@EVERY_PAGE
def test_the_part_of_plotly_draws_all_figures(site: Path, page_name: str) -> None:
    packed = re.findall(r'class="explorer-states">([^<]*)<', (site / f"{page_name}.html").read_text())
    for states in packed:
        found = set(kinds(json.loads(gzip.decompress(base64.b64decode(states)))))
        assert found in ({"scatter"}, {"bar"}, {"scatter", "bar"})


@EVERY_PAGE
def test_every_explorer_draws(tab: Any, phone: Any) -> None:
    names = [block.get_attribute("data-explorer") for block in with_controls(tab)]
    assert len(set(names)) == len(names), f"two explorers of one name: links to them would be mixed up: {names}"
    for block in [*explorers(tab), *explorers(phone)]:
        assert block.query_selector(".main-svg").bounding_box()["width"] > 200
        assert block.query_selector(".explorer-plot").get_attribute("aria-label")
        assert not block.query_selector("table").is_visible()


@EVERY_PAGE
def test_every_figure_says_what_to_see(tab: Any) -> None:
    """A caption, a quotation after its cell, which describes the picture; an explorer has a sentence of its own."""
    mute = """() => [...document.querySelectorAll(".explorer")].filter((block) =>
        !block.querySelector(".explorer-sentence").textContent
        && !document.getElementById(block.querySelector(".explorer-plot").getAttribute("aria-describedby"))
    ).map((block) => block.getAttribute("aria-label"))"""
    assert tab.evaluate(mute) == [], 'write "> What to see ..." right after the cell'


@pytest.mark.parametrize("way", ["file", "http"])
def test_the_search_finds_pages(browser: Any, site: Path, served: str, way: str) -> None:
    home = site.as_uri() if way == "file" else served
    with opened(browser, home, "search.html?q=rank") as tab:
        tab.locator("ul.search li").first.wait_for()
        tab.wait_for_load_state("networkidle")


TYPED = {  # what a reader types -> pages that must be found
    "allreduce": ["collectives", "data_parallel"],
    "AllReduce": ["collectives"],
    "all-reduce": ["collectives", "data_parallel"],
    "reducescatter": ["collectives"],
    "ring": ["collectives"],
    "ZeRO": ["memory", "data_parallel"],
    "bubble": ["pipeline"],
    "1F1B": ["pipeline"],
    "micro-batch": ["pipeline"],
    "NVLink": ["interconnects", "hardware"],
    "MFU": ["compute"],
    "DDP": ["data_parallel"],
    "gradient accumulation": ["data_parallel"],
    "out of memory": ["memory"],
    "OOM": ["memory"],
    "deadlock": ["pipeline"],
    "parity": ["measured"],
}


def test_the_search_finds_what_a_reader_types(browser: Any, site: Path) -> None:
    ask = "query => shardlabSearch(query).map(({ entry }) => entry.page)"
    with opened(browser, site.as_uri(), "search.html?q=rank") as tab:
        tab.locator("ul.search li").first.wait_for()  # the index is there
        for query, expected in TYPED.items():
            missing = {f"book/{page}" for page in expected if f"book/{page}" in PAGES} - {*tab.evaluate(ask, query)}
            assert not missing, query


FIRST = {"all-reduce": "book/collectives", "allreduce": "book/collectives", "pipeline": "book/pipeline"}


@pytest.mark.parametrize("way", ["file", "http"])
def test_the_search_leads_to_a_section_and_marks_the_words_there(
    browser: Any, site: Path, served: str, way: str
) -> None:
    home = site.as_uri() if way == "file" else served
    for query, page_name in FIRST.items():
        with opened(browser, home, f"search.html?q={query}") as tab:
            first = tab.locator("ul.search li a").first
            first.wait_for()
            assert f"{page_name}.html" in first.get_attribute("href")
            assert first.locator("mark").count() > 0
            first.click()
            tab.locator("article mark").first.wait_for()
    with opened(browser, home, "search.html?q=배치") as tab:
        tab.locator("ul.search li a[href*='glossary.html']").first.wait_for()


def test_chapters_say_how_long_they_take(site: Path) -> None:
    for chapter in exercises.CHAPTERS:
        minutes = reading.minutes(ROOT / "book" / f"{chapter}.md")
        assert f"Reading time: {minutes}" in (site / "book" / f"{chapter}.html").read_text()


@EVERY_PAGE
def test_words_are_whole_and_apart_on_a_screen(tab: Any, looks: dict[str, dict[int, Look]]) -> None:
    """No word of a figure is cut off or covered by another one, in the first state and in some others."""
    assert tab.evaluate(STAYS_INSIDE), "the page scrolls sideways"
    assert [block.evaluate(FAULTS) for block in plain(tab)] == [[]] * len(plain(tab))
    for name, seen in looks.items():
        assert {state: look.faults for state, look in seen.items() if look.faults} == {}, name


@EVERY_PAGE
def test_words_are_whole_and_apart_on_a_phone(phone: Any) -> None:
    assert phone.evaluate(STAYS_INSIDE), "the page scrolls sideways"
    assert phone.evaluate(WIDE_FORMULAS) == []
    assert [block.evaluate(FAULTS) for block in plain(phone)] == [[]] * len(plain(phone))
    for block in with_controls(phone):
        seen, name = look_at(block), block.get_attribute("data-explorer")
        assert {state: look.faults for state, look in seen.items() if look.faults} == {}, name


STAYS_INSIDE = "document.scrollingElement.scrollWidth <= innerWidth"
WIDE_FORMULAS = """async () => {
    await window.shardlabFormulas?.();
    const wider = (box) => box.querySelector("mjx-math")?.getBoundingClientRect().width > box.clientWidth + 1;
    return [...document.querySelectorAll("mjx-container[display]")].filter(wider).map((box) => box.textContent);
}"""


@EVERY_PAGE
def test_a_picture_has_readable_words_and_a_short_name(tab: Any, phone: Any) -> None:
    for place in (tab, phone):
        assert place.evaluate(ODD_WORDS) == []
        assert place.evaluate(LONG_NAMES) == []


ODD_WORDS = """() => {  // in pictures that the reader moves: their sizes in pixels
    const size = (text) => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
    return [...document.querySelectorAll(".moving svg text")].filter((text) => text.checkVisibility())
        .map((text) => [text.textContent, size(text)]).filter(([, size]) => size < 11 - 0.01 || size > 16);
}"""
LONG_NAMES = """() => [...document.querySelectorAll(".explorer-plot, .moving svg[role=img]")]
    .map((picture) => picture.getAttribute("aria-label")).filter((name) => name.split(" ").length > 50)"""


@EVERY_PAGE
def test_without_javascript_a_table(browser: Any, site: Path, page_name: str) -> None:
    with opened(browser, site.as_uri(), f"{page_name}.html", java_script_enabled=False) as tab:
        for block in explorers(tab):
            assert block.query_selector("td").is_visible()
            assert not any(part.is_visible() for part in block.query_selector_all(".explorer-controls, .explorer-plot"))


@pytest.mark.parametrize(
    ("page_name", "button", "keys"),
    [
        ("book/index", "Next", ("ArrowRight", "ArrowLeft")),
        ("book/collectives", "Next", ("ArrowRight", "ArrowLeft")),
        ("book/data_parallel", "Back", ("ArrowLeft", "ArrowRight")),
        ("book/composition", "Next", ("ArrowRight", "ArrowLeft")),
        ("book/memory", "Next", ("ArrowRight", "ArrowLeft")),
        ("book/pipeline", "Next", ("ArrowRight", "ArrowLeft")),
        ("book/interconnects", "Next", ("ArrowRight", "ArrowLeft")),
    ],
)
def test_a_picture_moves_by_the_readers_hand_and_on_paper_is_a_table(
    browser: Any, site: Path, page_name: str, button: str, keys: tuple[str, str]
) -> None:
    with opened(browser, site.as_uri(), f"{page_name}.html", reduced_motion="reduce") as tab:
        stage, table = tab.locator(".moving.live .moving-stage"), tab.locator(".moving table")
        seen = [stage.inner_html()]
        for key in ("Enter", "Enter", *keys):
            stage.get_by_role("button", name=button).press(key)
            seen.append(stage.inner_html())
        assert len(set(seen)) == 4
        assert seen[4] == seen[2]
        said = " ".join(stage.locator('[class$="-state"], .moving-meter, output').all_text_contents())
        assert said == NUMBER.sub("\u00a0", said), "a number keeps to its unit"
        for event, shown in (("load", False), ("beforeprint", True), ("afterprint", False)):
            tab.evaluate(f"dispatchEvent(new Event('{event}'))")
            assert table.is_visible() == shown
        tab.emulate_media(media="print")
        assert not stage.is_visible()
    with opened(browser, site.as_uri(), f"{page_name}.html", java_script_enabled=False) as tab:
        assert tab.locator(".moving table").is_visible()
        assert not tab.locator(".moving-stage").is_visible()


@pytest.mark.parametrize("page", ["memory", "data_parallel", "collectives", "composition", "pipeline"])
def test_a_word_of_the_text_lights_its_part_up(page: str, browser: Any, site: Path) -> None:
    with opened(browser, site.as_uri(), f"book/{page}.html") as tab:
        word = tab.locator("p > .moving-word").first
        faded = ".moving.lighting [data-light]:not([data-lit])"
        for lit in (True, False):
            word.press("Enter")
            tab.locator(".moving-steps button").last.click()  # what is drawn anew stays lit
            assert (word.get_attribute("aria-pressed") == "true") == lit
            assert bool(tab.locator(faded).count()) == bool(tab.locator(".moving.lighting [data-lit]").count()) == lit
    with opened(browser, site.as_uri(), f"book/{page}.html", java_script_enabled=False) as tab:
        assert tab.locator("p > [class^=lights-]").first.is_visible()
        assert not tab.locator(".moving-word").count()


@EVERY_PAGE
def test_on_a_screen_no_bar_needs_a_pattern(site: Path, page_name: str) -> None:
    """Each colour has one meaning in a legend, in every state of every figure."""
    packed = r'data-explorer="([^"]*)".*?class="explorer-states">([^<]*)<'
    for name, states in re.findall(packed, (site / f"{page_name}.html").read_text(), re.DOTALL):
        made = python_explorers().get(name)
        for shown in page.unpacked(states, len(made.states()) if made else 1):
            assert alike(shown["figure"]) == [], name


def test_bars_have_patterns_on_paper_and_in_forced_colours_only(browser: Any, site: Path) -> None:
    marked = "shardlab.explorers.flatMap(({ plot }) => plot.data).filter(({ marker }) => marker?.pattern?.shape).length"
    with opened(browser, site.as_uri(), "book/memory.html") as tab:
        draw_all(tab)
        assert tab.evaluate(marked) == 0
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.evaluate(marked) > 0
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        tab.wait_for_function(f"!{marked}")
        tab.emulate_media(forced_colors="active")
        tab.wait_for_function(marked)


@EVERY_PAGE
def test_a_page_printed_at_once_tells_everything(visit: Visit) -> None:
    assert visit.mute == 0


PRINT = """() => {
    dispatchEvent(new Event("beforeprint"));
    const tells = (block) => "state" in block.dataset || block.querySelector("details").open;
    const mute = [...document.querySelectorAll(".explorer")].filter((block) => !tells(block)).length;
    dispatchEvent(new Event("afterprint"));
    for (const details of document.querySelectorAll(".explorer details")) details.open = false;
    return mute;
}"""


@EVERY_PAGE
def test_a_page_just_opened_prints_all_figures_in_light_colours(opening: Opening) -> None:
    assert opening.undrawn == []
    assert opening.inks <= {opening.text}
    assert opening.themes == ("light", "dark"), "on paper, and when it is printed"


@EVERY_PAGE
def test_the_figures_of_a_page_load_when_they_come_near_or_the_reader_has_time(
    browser: Any, site: Path, page_name: str
) -> None:
    """On a phone nothing loads that nobody looks at; plotly.js is there before the first figure is."""
    with opened(browser, site.as_uri(), f"{page_name}.html", "phone", has_touch=True, is_mobile=True) as tab:
        tab.wait_for_load_state("load")
        far = "document.querySelector('.explorer-plot')?.getBoundingClientRect().top > innerHeight + 700"
        if tab.evaluate(far):
            assert not tab.evaluate("'Plotly' in window")


@EVERY_PAGE
def test_a_notebook_without_outputs_is_offered(tab: Any, page_name: str) -> None:
    if "kernelspec" not in (ROOT / f"{page_name}.md").read_text().split("\n---", 1)[0]:
        pytest.skip("a page without cells")
    link = tab.locator("a[href$='.ipynb']").first.evaluate("link => link.href")
    notebook = nbformat.read(Path(link.removeprefix("file://")), as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any(cell.get("outputs") for cell in notebook.cells)
    assert any(cell.cell_type == "code" for cell in notebook.cells)


# ---- explorers


@EVERY_PAGE
def test_the_page_shows_what_python_computes(tab: Any, looks: dict[str, dict[int, Look]]) -> None:
    """All states: the order in which controls choose them, what is kept of each. Some: computed anew, and drawn."""
    for block in with_controls(tab):
        made = python_explorers()[block.get_attribute("data-explorer")]
        states = made.states()
        chosen = block.evaluate(CHOOSE_EACH)
        assert [values for values, _ in chosen] == [[str(x) for x in state.values()] for state in states]
        assert [index for _, index in chosen] == list(range(len(states)))
        kept = json.loads(block.evaluate(KEPT))
        packed = block.query_selector(".explorer-states").text_content()
        assert kept == page.unpacked(packed, len(states))
        ranges = defaultdict(set)
        for state, shown in zip(states, kept, strict=True):
            for axis, ends in axes.spans(shown["figure"]):
                ranges[made.scale(state), axis].add(ends)
        assert [where for where, found in ranges.items() if len(found) > 1] == [], made.name
        for index, look in looks[made.name].items():
            computed = json.loads(json.dumps(made.view(**states[index]).plain()))
            assert axes_apart(kept[index]) == axes_apart(computed)
            assert look.data == [{key: each.get(key) for key in KINDS} for each in computed["figure"]["data"]]


def axes_apart(shown: dict[str, Any]) -> Any:
    """What a view shows, without the ranges that it has from all views of its explorer."""
    layout = {key: each for key, each in shown["figure"]["layout"].items() if "axis" not in key}
    layout.pop("annotations", None)  # the lengths of bars that are cut are among them
    return shown["figure"]["data"], layout, shown["sentence"], shown["table"]


KINDS = "type", "name", "x", "y"  # of a trace: its colours are the page's
FIND = "async (block, state) => { const explorer = shardlab.explorers.find((other) => other.block === block);"
KEPT = (
    FIND
    + """
    const views = [...Array(explorer.count).keys()].map((state) => explorer.view(state));
    return JSON.stringify(await Promise.all(views));
}"""
)
CHOOSE_EACH = (
    FIND
    + """
    const { controls } = explorer, found = [];
    const choose = (depth) => {
        if (depth === controls.length)
            return found.push([controls.map(({ values, at }) => values[at]), explorer.index()]);
        for (let at = 0; at < controls[depth].values.length; at++) { controls[depth].at = at; choose(depth + 1); }
    };
    choose(0);
    return found;
}"""
)
DRAWN_DATA = (
    FIND
    + """
    for (const control of [...explorer.controls].reverse()) {
        control.at = state % control.values.length;
        state = Math.floor(state / control.values.length);
    }
    await explorer.draw();
    const { length } = (await explorer.view(explorer.index())).figure.data;  // what follows is for the legend alone
    return explorer.plot.data.slice(0, length).map(({ type, name, x, y }) => ({ type, name, x, y }));
}"""
)


DRAWING = (
    FIND
    + """
    for (const start = Date.now(); Number(block.dataset.state) !== explorer.index(); ) {
        if (Date.now() - start > 60_000) throw new Error(`${explorer.name} does not show what its controls say`);
        await new Promise(requestAnimationFrame);
    }
    return JSON.stringify([explorer.plot.data, explorer.plot.layout]);
}"""
)
RESET = (
    FIND
    + """
    for (const control of explorer.controls) control.at = Number(control.input.dataset.at);
    if (Number(block.dataset.state) !== explorer.index()) await explorer.draw();
}"""
)


@EVERY_PAGE
def test_an_explorer_is_calm(tab: Any, phone: Any) -> None:
    """Labels stand on one line, a control moves neither the figure nor what follows, and all fits one screen."""
    for place, high in ((tab, 800), (phone, SIZES["phone"][1])):
        for block in with_controls(place):
            name = block.get_attribute("data-explorer")
            assert block.evaluate(BROKEN_LABELS) == [], name
            assert block.evaluate(PLACES) == {"tops": 1, "heights": 1, "plots": 1}, name
            assert block.evaluate(REACH) <= high, name
            assert not block.evaluate(COVERED), name


BROKEN_LABELS = """(block) => {
    const lines = (label) => { const range = document.createRange(); range.selectNodeContents(label); return range; };
    const labels = [...block.querySelectorAll("legend, label:not(:has(input))")];  // radio buttons do not wrap
    return labels.filter((label) => lines(label).getClientRects().length > 1)
        .map((label) => label.textContent);
}"""
COVERED = """(block) => {  // whether Reset lies upon a line of the title
    const lines = document.createRange(), reset = block.querySelector(".explorer-reset").getBoundingClientRect();
    lines.selectNodeContents(block.querySelector(".explorer-title"));
    return [...lines.getClientRects()].some((line) =>
        line.right > reset.left && line.bottom > reset.top && line.top < reset.bottom);
}"""
REACH = """(block) => block.querySelector("summary").getBoundingClientRect().bottom
    - block.getBoundingClientRect().top"""  # down to the name of the folded table
PLACES = (
    FIND
    + """
    const tops = new Set(), heights = new Set(), plots = new Set();
    const measure = () => {
        tops.add(explorer.plot.getBoundingClientRect().top - block.getBoundingClientRect().top);
        heights.add(explorer.sentence.offsetHeight);
    };
    for (const control of explorer.controls) {
        const before = control.at;
        for (let at = 0; at < control.values.length; at++) {
            control.at = at;
            explorer.sentence.innerHTML = (await explorer.view(explorer.index())).sentence;  // what could move the rest
            measure();
        }
        await explorer.draw();
        plots.add(explorer.plot.offsetHeight);
        measure();
        control.at = before;
    }
    await explorer.draw();
    plots.add(explorer.plot.offsetHeight);
    measure();
    const moved = Math.max(...tops) - Math.min(...tops) >= 1;  // px
    return { tops: moved ? tops.size : 1, heights: heights.size, plots: plots.size };
}"""
)


@EVERY_PAGE
def test_the_keyboard_alone_changes_every_figure(tab: Any) -> None:
    tab.evaluate("() => { document.activeElement.blur(); getSelection().removeAllRanges(); }")
    for block in with_controls(tab):
        for control in block.query_selector_all("[data-control]"):
            reach(tab, control.query_selector("input:checked") or control)
            assert step_through(tab, block, control) > 1, f"{control.get_attribute('id')} changes no figure"


def reach(tab: Any, control: Any) -> None:
    """Press Tab until the control has the focus; the first one is reached from the start of the page."""
    for _ in range(1000):
        if control.evaluate("input => input === document.activeElement"):
            return
        tab.keyboard.press("Tab")
    pytest.fail(f"{control.get_attribute('id')} is not reached with the Tab key")


FEW_STEPS = 4  # by an arrow: the next ones differ in what test_the_page_shows_what_python_computes looks at


def step_through(tab: Any, block: Any, control: Any) -> int:
    """Press keys through the first values of the focused control to its last; the number of different figures seen."""
    last = len(json.loads(control.get_attribute("data-values"))) - 1
    if control.get_attribute("type") == "checkbox":
        keys = ["Space"]
    elif control.query_selector("input"):
        keys = ["ArrowRight"] * last
    else:
        arrow = "ArrowRight" if control.get_attribute("type") == "range" else "ArrowDown"
        keys = ["Home", *[arrow] * min(last, FEW_STEPS), "End"]
    seen = {drawing(block)}
    for key in keys:
        tab.keyboard.press(key)
        seen.add(drawing(block))
    text = control.get_attribute("aria-valuetext")
    end = int(control.get_attribute("max") or last)  # a step's slider ends at the last step of what is chosen
    assert text is None or text == json.loads(control.get_attribute("data-texts"))[end]
    return len(seen)


@EVERY_PAGE
def test_a_reader_steps_through_time_or_plays_it(tab: Any) -> None:
    """By keyboard alone; a reader who wants no motion has no button that starts one."""
    for block in with_controls(tab):
        buttons = block.query_selector_all(".explorer-steps button")
        if not buttons:
            continue
        back, forward, play = buttons
        others = block.evaluate(OTHERS)
        slider = block.query_selector(".explorer-stepped input")
        slider.fill("0")
        for button, expected in ((forward, 1), (forward, 2), (back, 1), (back, 0), (back, 0)):
            button.press("Enter")
            assert slider.input_value() == str(expected)
        play.press("Enter")
        assert play.text_content() == "Pause"
        tab.wait_for_function("slider => slider.value > 1", arg=slider)
        play.press("Enter")
        assert play.text_content() == "Play"
        slider.fill(slider.get_attribute("max"))
        last = drawing(block)
        back.press("Enter")
        assert drawing(block) != last, "the slider ends at the last step that changes anything"
        forward.press("Enter")
        forward.press("Enter")
        assert drawing(block) == last
        play.press("Enter")  # from the beginning
        assert slider.input_value() == "0"
        slider.press("ArrowRight")
        assert (play.text_content(), slider.input_value()) == ("Play", "1")
        assert block.evaluate(OTHERS) == others
        tab.emulate_media(reduced_motion="reduce")
        assert not play.is_visible()
        assert forward.is_visible()
        tab.emulate_media(reduced_motion="no-preference")


OTHERS = """block => [...block.querySelectorAll(".explorer-control:not(.explorer-stepped) :is(input, select)")]
    .map(({ checked, value }) => [checked, value])"""


@EVERY_PAGE
def test_a_link_restores_the_positions(visit: Visit) -> None:
    assert visit.restored == visit.sent


SETTLED = """() => {
    const fields = new URLSearchParams(location.hash.slice(1));
    const named = (explorer, { name, input, values }) =>
        fields.get(`${explorer.name}.${name}`) ?? values[input.dataset.at];  // else it is at its default
    return shardlab.explorers.filter(({ controls }) => controls.length).every((explorer) =>
        Number(explorer.block.dataset.state) === explorer.index() && explorer.controls.every((control) =>
            named(explorer, control) === control.values[control.at]));
}"""
OTHER_END = """input => {
    const radios = [...input.querySelectorAll("input")], last = radios.at(-1);
    if (last) (last.checked ? radios[0] : last).checked = true;
    else if (input.type === "checkbox") input.checked = !input.checked;
    else if (input.type === "range") input.value = input.value === input.max ? input.min : input.max;
    else input.selectedIndex = input.selectedIndex ? 0 : input.options.length - 1;
    input.dispatchEvent(new Event("input", { bubbles: true }));
}"""


def test_at_least_one_page_has_an_explorer(site: Path) -> None:
    assert any('data-explorer="' in (site / f"{page_name}.html").read_text() for page_name in PAGES)


# ---- pictures


STRETCH = 4_000  # pixels of text on a screen that may go on without a picture, a table or a guess
LONGEST_STRETCH = """() => {
    const page = document.querySelector("main article");
    const top = (element) => element.getBoundingClientRect().top;
    const height = (element) => element.getBoundingClientRect().height;
    const end = top([...page.querySelectorAll("h2")].find((title) => title.textContent.startsWith("Exercises")));
    const seen = (element) => element.checkVisibility() && height(element) > 60;
    const code = [...page.querySelectorAll("div.highlight")].filter((element) => element.checkVisibility());
    const between = (from, to) => code.filter((element) => from <= top(element) && top(element) < to);
    const text = (from, to) => between(from, to).reduce((rest, element) => rest - height(element), to - from);
    let [below, longest] = [top(page), 0];
    for (const picture of [...page.querySelectorAll("figure, table, .explorer, form")].filter(seen)) {
        if (top(picture) > end) break;
        longest = Math.max(longest, text(below, top(picture)));
        below = Math.max(below, picture.getBoundingClientRect().bottom);
    }
    return Math.max(longest, text(below, end));
}"""


@pytest.mark.parametrize("page_name", [f"book/{chapter}" for chapter in exercises.CHAPTERS], scope="package")
def test_a_chapter_shows_before_it_tells_more(tab: Any, page_name: str) -> None:
    """Exercises, the journey and sources are lists to work through; everything above them needs pictures."""
    longest = tab.evaluate(LONGEST_STRETCH)
    assert longest <= STRETCH, f"{longest:.0f} px without a picture"
