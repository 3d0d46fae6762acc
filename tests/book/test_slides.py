"""The decks: what each must hold, what a slide can hold, and one deck in a browser without a network."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from shardlab.exercises import CHAPTERS

from .conftest import ROOT
from .test_notebooks import BOOK

import deck  # isort: skip  # tools, which the lines above make known
import pieces  # isort: skip
import workshop  # isort: skip

EVERY_CHAPTER = pytest.mark.parametrize("chapter", CHAPTERS)
PICTURE = re.compile(r"^```\{image\} (\S+)\n:alt: \S", re.MULTILINE)
OUTSIDE = """(number) => {
    const slide = Reveal.getSlides()[number];
    Reveal.slide(...Object.values(Reveal.getIndices(slide)).slice(0, 2), 9);
    const shown = [...slide.querySelectorAll("h1, h2, p, li, pre, img, svg, mjx-container")];
    return shown.filter((each) => !each.closest("aside")).filter((each) => {
        const box = each.getBoundingClientRect();
        const typeset = each.tagName !== "IMG" || each.naturalWidth > 0;
        return !box.height || !typeset || box.bottom > innerHeight || box.right > innerWidth;
    }).map((each) => each.outerHTML.slice(0, 200));
}"""


@pytest.fixture(scope="module")
def decks() -> dict[str, list[deck.Slide]]:
    """The slides of every chapter, made once: the cells that forms need take twenty seconds."""
    return deck.decks(BOOK, [f"book/{chapter}" for chapter in CHAPTERS])


def main_line(chapter: str) -> str:
    """A page without its second sittings."""
    text = BOOK.path(f"book/{chapter}").read_text()
    return "".join(each for each in re.split(r"^(?=## )", text, flags=re.M) if not each.startswith("## Second sitting"))


@EVERY_CHAPTER
def test_a_deck_has_ten_to_fifteen_slides_and_none_is_too_full(decks: dict[str, Any], chapter: str) -> None:
    slides = decks[f"book/{chapter}"]
    assert 10 <= len(slides) <= 15
    assert {each.title: each.words for each in slides if each.words > 60} == {}
    assert [each.title for each in slides if not each.notes.strip()] == []
    assert [each.title for each in slides if not each.body.strip()] == []
    assert slides[-1].title == "Take home"
    assert "$$" not in "".join(each.title for each in slides)


@EVERY_CHAPTER
def test_every_form_and_every_drawing_of_the_main_line_has_its_slide(decks: dict[str, Any], chapter: str) -> None:
    slides, text = decks[f"book/{chapter}"], main_line(chapter)
    bodies = {each.title: each.body for each in slides}
    asked = re.findall(r'^guess\.\w+\(\n    "(.*)",$', text, re.M)
    assert len(asked) == len(workshop.ASKED.findall(text)) > 0
    for question in asked:
        assert re.search(r"\{revealjs-fragments\}\n\*\*\S.*\*\* \S", bodies[question]), question
    drawn = [name for each in slides for name in PICTURE.findall(each.body)]
    assert sorted(drawn) == sorted(re.findall(r"^```\{figure\} (\S+)", text, re.M))
    assert all((ROOT / "book" / name).is_file() for name in drawn)


@EVERY_CHAPTER
def test_no_mark_of_the_page_is_left_on_a_slide(decks: dict[str, Any], chapter: str) -> None:
    for each in decks[f"book/{chapter}"]:
        words = re.sub(r"```(?:python|text)\n.*?\n```", "", f"{each.title} {each.body}", flags=re.S) + each.notes
        assert not re.search(r"\{cite|\]\(|Guess first|Predict before|\.md\b", words)
        assert words.count("**") % 2 == 0, words


def test_the_answer_is_what_the_page_computes(decks: dict[str, Any]) -> None:
    (body,) = (each.body for each in decks["book/compute"] if each.title.startswith("How many years would an H100"))
    assert "**10.3 years.** Training takes about six operations" in body
    (body,) = (each.body for each in decks["book/sharding"] if each.title == "What is wrong in program A?")
    assert body.index("- its loss is twice too large") < body.index("**each rank has only a term of the gradient.**")


def test_what_students_miss_is_in_the_notes_of_the_question_that_the_lab_asks(decks: dict[str, Any]) -> None:
    for page, slides in decks.items():
        stuck = [each.title for each in slides if "Where students stick: " in each.notes]
        assert len(stuck) == 1, page


@pytest.mark.parametrize("limits", [{"FEWEST": 16}, {"FEWEST": 1, "MOST": 3}])
def test_a_page_that_makes_too_few_or_too_many_is_refused(monkeypatch: pytest.MonkeyPatch, limits: Any) -> None:
    asked = deck.answers(ROOT, "book/collectives")
    assert deck.slides(BOOK, "book/collectives", asked)
    for name, number in limits.items():
        monkeypatch.setattr(deck, name, number)
    with pytest.raises(ValueError, match="book/collectives makes"):
        deck.slides(BOOK, "book/collectives", asked)


def test_a_page_that_lacks_something_is_refused_or_has_no_slide_for_it() -> None:
    heading, formula = (pieces.Block(kind, "", kind, {}, ("One", "Two")) for kind in ("heading", "math_block"))
    assert [each.body for each in deck.formula([heading, formula])] == ["\n\nmath_block\n\n"]
    assert list(deck.asks(BOOK, "book/memory", [heading], {}, {"Where students stick": "", "Ask": ""})) == []
    with pytest.raises(ValueError, match="has no drawing"):
        list(deck.last([heading], {}))


def test_sentences_are_taken_whole() -> None:
    assert pieces.first("One is short. Two is: a list.", 3) == "One is short."
    assert pieces.first("One is far too long for that.", 2) == "One is far too long for that."
    assert pieces.first("**In bold. Still bold.** Plain.", 2) == "**In bold.**"
    assert pieces.ending("One is short. Two is. And three.", 4) == "Two is. And three."


def test_notes_have_no_marks_but_those_of_formulas_and_code() -> None:
    marked = "- A *term*, in **bold**: $x^*$ is `a ** b`, $$y^*$$."
    assert pieces.plain(marked) == "A term, in bold: $x^*$ is a ** b, $$y^*$$."


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deck of one chapter, as the command writes it."""
    folder = tmp_path_factory.mktemp("slides")
    command = [sys.executable, str(ROOT / "tools" / "slides.py"), "compute", "--into", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(folder / "index.html"), str(folder / "compute.html")]
    return folder


@pytest.fixture(scope="module")
def tab(browser: Any, built: Path) -> Any:
    with browser.new_context(viewport={"width": 1280, "height": 720}, offline=True) as context:
        tab = context.new_page()
        tab.failed = []
        tab.on("requestfailed", lambda request: tab.failed.append(request.url))
        tab.goto((built / "compute.html").as_uri())
        tab.wait_for_function("window.Reveal?.isReady() && window.MathJax?.startup?.promise")
        tab.evaluate("async () => { await MathJax.startup.promise; await document.fonts.ready; }")
        yield tab


def test_every_slide_fits_the_screen_without_a_network(tab: Any) -> None:
    for number in range(tab.evaluate("Reveal.getTotalSlides()")):
        assert tab.evaluate(OUTSIDE, number) == []
    assert tab.locator(".math:not(:has(mjx-container))").count() == 0
    assert tab.failed == []


def test_a_key_shows_the_answer_and_the_next_one_goes_on(tab: Any) -> None:
    tab.evaluate("Reveal.slide(1, 0, -1)")
    answer = tab.locator("section.present section.present .fragment")
    assert "visible" not in answer.get_attribute("class")
    tab.keyboard.press("Space")
    assert "visible" in answer.get_attribute("class")
    tab.keyboard.press("Space")
    assert tab.evaluate("Reveal.getIndices().h") == 2


def test_notes_open_in_a_window_of_their_own(tab: Any) -> None:
    with tab.expect_popup() as opened:
        tab.keyboard.press("s")
    opened.value.wait_for_function("document.querySelector('.speaker-controls-notes .value')?.textContent.length > 50")
    opened.value.close()


def test_paper_has_a_page_for_each_slide(browser: Any, built: Path, tab: Any) -> None:
    slides = tab.evaluate("Reveal.getTotalSlides()")
    assert printed(browser, built, "?print-pdf") == slides
    assert printed(browser, built, "?print-pdf&showNotes=separate-page") >= 2 * slides  # notes may need two


def printed(browser: Any, built: Path, how: str) -> int:
    """The number of pages on paper."""
    paper = browser.new_page()
    paper.goto(f"{(built / 'compute.html').as_uri()}{how}")
    paper.wait_for_selector(".pdf-page >> nth=-1", state="attached")
    pages = PdfReader(io.BytesIO(paper.pdf(prefer_css_page_size=True))).pages
    paper.close()
    return len(pages)


def test_a_folder_with_other_things_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    command = [sys.executable, str(ROOT / "tools" / "slides.py"), "compute", "--into", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "holds other things than decks" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_chapter_that_is_none_is_refused() -> None:
    command = [sys.executable, str(ROOT / "tools" / "slides.py"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "there is no chapter nothing; there are memory, compute" in done.stderr
