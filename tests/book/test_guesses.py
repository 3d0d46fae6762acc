"""The forms that ask for a guess: every sentence in a browser, every form of a built chapter, what chapters ask."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardlab import exercises
from shardlab.explorers import guess

from ..explorers.guesses import BAD, CASES, COUNT, LARGER, MEMORY
from .conftest import ROOT, opened
from .test_pages import STAYS_INSIDE

ROOM = Path(guess.__file__).parent
ONE_OF_EACH = (MEMORY, COUNT, LARGER)
EVERY_CHAPTER = pytest.mark.parametrize("chapter", exercises.CHAPTERS, scope="module")


# ---- every sentence, on a page of its own


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page that has the form of every question, and nothing else."""
    folder = tmp_path_factory.mktemp("page")
    forms = "".join(sorted({asked.html() for asked, *_ in CASES}))
    style, script = ((ROOM / name).read_text() for name in ("guess.css", "guess.js"))
    (folder / "page.html").write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Guesses</title><style>{style}</style>"
        f"<body>{forms}<script>{script}</script>"
    )
    return folder


@pytest.fixture(scope="module")
def tab(browser: Any, page: Path) -> Iterator[Any]:
    with opened(browser, page.as_uri(), "page.html") as tab:
        yield tab


def form_of(tab: Any, asked: guess.Guess) -> Any:
    """The block of a question."""
    return tab.locator(f".guess:has(#guess-{asked.question.name}-result)")


def give(block: Any, given: str) -> str:
    """Type or choose a guess, check it, and return what the page says."""
    radio = block.locator("input[type=radio]")
    if not radio.count():
        block.locator("input").fill(given)
    elif given:
        block.get_by_label(given, exact=True).check()
    else:
        block.locator("form").evaluate("form => form.reset()")
    block.locator("button").click()
    return str(block.locator(".guess-result").text_content())


@pytest.mark.parametrize(("asked", "given", "sentence"), CASES)
def test_the_page_says_what_python_says(tab: Any, asked: guess.Guess, given: str, sentence: str) -> None:
    block = form_of(tab, asked)
    assert give(block, given) == sentence
    assert block.locator("details p").is_visible()


@pytest.mark.parametrize(("asked", "given", "message"), BAD)
def test_the_page_says_what_to_type(tab: Any, asked: guess.Guess, given: str, message: str) -> None:
    block = form_of(tab, asked)
    block.locator("details").evaluate("details => { details.open = false; }")
    assert give(block, given) == message
    assert not block.locator("details p").is_visible()
    assert block.locator("input").first.evaluate("input => input === document.activeElement")
    if asked is not LARGER:
        assert block.locator("input").get_attribute("aria-invalid") == "true"
        give(block, "1")
        assert block.locator("input").get_attribute("aria-invalid") == "false"


def test_a_guess_is_kept_under_the_page_and_its_name(tab: Any) -> None:
    give(form_of(tab, MEMORY), " 300 GB ")
    key = "shardlab guess page.html memory"
    assert tab.evaluate("key => JSON.parse(localStorage.getItem(key)).given", key) == "300 GB"


def test_a_guess_of_an_earlier_day_is_shown(browser: Any, page: Path) -> None:
    with opened(browser, page.as_uri(), "page.html") as tab:
        store = "([key, given]) => localStorage.setItem(key, JSON.stringify({ given, at: Date.UTC(2025, 10, 22, 12) }))"
        for name, given in (("memory", "1,000"), ("larger", "gone"), ("count", "no number")):
            tab.evaluate(store, [f"shardlab guess page.html {name}", given])
        tab.reload()
        form_of(tab, MEMORY).locator("button", has_text=guess.AGAIN).wait_for()  # its script may come after the page
        shown = [form_of(tab, each).locator(".guess-result").text_content() for each in ONE_OF_EACH]
        assert shown == ["Your guess of 22 November 2025: 1,000 GB.", "", ""]
        buttons = [form_of(tab, each).locator("button").text_content() for each in ONE_OF_EACH]
        assert buttons == [guess.AGAIN, guess.CHECK, guess.CHECK]
        assert form_of(tab, COUNT).locator("input").input_value() == ""


NO_STORAGE = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no'); } });"


def test_without_storage_a_guess_is_judged_and_not_kept(browser: Any, page: Path) -> None:
    with opened(browser, page.as_uri(), "page.html") as tab:
        tab.add_init_script(NO_STORAGE)
        tab.reload()
        assert give(form_of(tab, MEMORY), "300") == CASES[0][2]
        tab.reload()
        assert form_of(tab, MEMORY).locator(".guess-result").text_content() == ""
        assert give(form_of(tab, LARGER), "the states") == 'You guessed "the states". That is right.'


def test_paper_shows_question_and_answer_and_no_form(browser: Any, page: Path) -> None:
    with opened(browser, page.as_uri(), "page.html") as tab:
        tab.emulate_media(media="print")
        for asked in ONE_OF_EACH:
            block = form_of(tab, asked)
            assert block.locator(".guess-question").is_visible()
            assert block.locator("details p").bounding_box()["height"] > 10
            assert not any(each.is_visible() for each in block.locator("input, button").all())


# ---- the forms of the built chapters


@pytest.fixture(scope="module")
def chapter_tab(browser: Any, site: Path, chapter: str) -> Iterator[Any]:
    """A built chapter on a phone, which draws no figure out of sight, as it would for a mouse."""
    with opened(browser, site.as_uri(), f"book/{chapter}.html", "phone", color_scheme="light", has_touch=True) as tab:
        assert tab.evaluate("matchMedia('(pointer: coarse)').matches")
        yield tab


@EVERY_CHAPTER
def test_every_form_of_a_chapter_works_by_keyboard_and_keeps_the_guess(chapter_tab: Any) -> None:
    for block in chapter_tab.query_selector_all(".guess"):
        first, answer = block.query_selector("input"), block.query_selector("details p")
        first.focus()
        assert not answer.is_visible()
        keys = ["Space", "Enter"] if first.get_attribute("type") == "radio" else ["1", "Tab", "Space"]
        for key in keys:
            chapter_tab.keyboard.press(key)
        assert block.query_selector(".guess-result").text_content().startswith("You guessed ")
        assert answer.is_visible()
    assert chapter_tab.evaluate(STAYS_INSIDE), "the page scrolls sideways"
    chapter_tab.reload()
    today = datetime.date.today()
    for block in chapter_tab.query_selector_all(".guess"):
        shown = block.query_selector(".guess-result").text_content()
        assert shown.startswith(f"Your guess of {today.day} {today:%B} {today.year}: ")
        assert not block.query_selector("details p").is_visible()
        assert block.query_selector("button").text_content() == guess.AGAIN


@EVERY_CHAPTER
def test_a_form_is_large_enough_and_readable_in_both_themes(chapter_tab: Any) -> None:
    for theme in ("light", "dark"):
        chapter_tab.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        for block in chapter_tab.query_selector_all(".guess"):
            block.query_selector("details").evaluate("details => { details.open = true; }")
            assert block.evaluate(POOR_CONTRASTS) == [], theme
            touched = block.query_selector_all("button, .guess-option")
            assert all(each.bounding_box()["height"] >= 44 for each in touched)


POOR_CONTRASTS = """(block) => {
    const channels = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => channels(color).slice(0, 3).map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if ((channels(color)[3] ?? 1) === 1) return color;
        }
        return "rgb(255, 255, 255)";
    };
    return [...block.querySelectorAll("label, legend, span, button, summary, p, input")].map((node) => {
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((one, other) => one - other);
        return [node.textContent || node.tagName, (b + 0.05) / (a + 0.05)];
    }).filter(([, ratio]) => ratio < 4.5);
}"""


@EVERY_CHAPTER
def test_without_a_script_the_folded_answer_is_left(browser: Any, site: Path, chapter: str) -> None:
    with opened(browser, site.as_uri(), f"book/{chapter}.html", java_script_enabled=False) as tab:
        for block in tab.query_selector_all(".guess"):
            assert block.query_selector(".guess-question").is_visible()
            assert not any(each.is_visible() for each in block.query_selector_all("input, button"))
            block.query_selector("summary").click()
            assert block.query_selector("details p").is_visible()


# ---- the chapters' text

CELL = re.compile(r"(^```\{code-cell\}.*?^```$)", re.MULTILINE | re.DOTALL)
ASKS = re.compile(r"guess first|predict before you run|^guess ", re.IGNORECASE | re.MULTILINE)
FORM = re.compile(r"^guess\.(?:number|choice)\(", re.MULTILINE)
HIDDEN = ":tags: [remove-input]\n:jupyter: {source_hidden: true}\n"  # on the page, and in a notebook


def blocks_of(text: str) -> list[str]:
    """The paragraphs and cells of a chapter, in order."""
    parts = [[part] if CELL.match(part) else part.split("\n\n") for part in CELL.split(text)]
    return [block for part in parts for block in part if block.strip()]


@EVERY_CHAPTER
def test_whoever_asks_for_a_guess_takes_it(chapter: str) -> None:
    """A paragraph that asks for a guess is followed by a form, and every chapter asks at least once."""
    blocks = blocks_of((ROOT / "book" / f"{chapter}.md").read_text())
    forms = [at for at, block in enumerate(blocks) if CELL.match(block) and FORM.search(block)]
    asking = [at for at, block in enumerate(blocks) if not CELL.match(block) and ASKS.search(block)]
    assert forms
    assert [blocks[at] for at in asking if at + 1 not in forms] == []
    assert [blocks[at] for at in forms if HIDDEN not in blocks[at]] == [], "its code would tell the answer"


def test_no_two_questions_have_one_name() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "book").glob("*.md")))
    cells = [cell for cell in CELL.findall(text) if FORM.search(cell)]
    names = [name for cell in cells for name in re.findall(r'name="([^"]*)"', cell)]
    assert len({*names}) == len(names) == len(cells) >= len(exercises.CHAPTERS)
