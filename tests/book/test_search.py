"""The search of the built book: the section that answers comes first, and no query leaves a blank page."""

from __future__ import annotations

import csv
import itertools
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

HERE = Path(__file__).parent
ASK = """queries => queries.map((query) =>
    shardlabSearch(query).slice(0, 5).map(({ entry }) => `${entry.page}#${entry.id}`))"""
SHOW = """query => { shardlabShow(query);
    const results = document.getElementById("search-results");
    return results.querySelectorAll("li").length > 0 || results.innerText.includes("did not match"); }"""
REVIEW = 42  # queries of readers, at the top of the table; below them words from issue threads and question sites


def expected() -> dict[str, tuple[str, ...]]:
    """For each query how a right answer may begin, as it was written down from the book, before any result."""
    with (HERE / "queries.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    return {row["query"]: tuple(f"book/{each}" for each in row["expected"].split("|")) for row in rows}


@pytest.fixture
def tab(browser: Any, site: Path) -> Iterator[Any]:
    """The page of the search, from disk, on a phone in the dark."""
    opened = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    opened.goto(f"{site.as_uri()}/search.html?q=rank")
    opened.locator("ul.search li").first.wait_for()
    yield opened
    opened.close()


def test_the_right_section_comes_first(tab: Any) -> None:
    table = expected()
    places = tab.evaluate("shardlabSections.map(({ page, id }) => `${page}#${id}`)")
    assert [each for known in table.values() for each in known if not any(p.startswith(each) for p in places)] == []
    answers = dict(zip(table, tab.evaluate(ASK, list(table)), strict=True))
    firsts = {query: (answer or ["nothing"])[0] for query, answer in answers.items()}
    missed = {query: firsts[query] for query, right in table.items() if not firsts[query].startswith(right)}
    of_the_review = [query for query in list(table)[:REVIEW] if query in missed]
    assert REVIEW - len(of_the_review) >= 38, missed
    assert len(table) - REVIEW - (len(missed) - len(of_the_review)) >= 117, missed


def test_a_query_that_the_book_does_not_answer_is_told_so_and_no_other(tab: Any) -> None:
    told = """queries => queries.filter((query) => { shardlabShow(query);
        return document.querySelector("#search-results [role=status] a")?.href.includes("book/operations.html#"); })"""
    apart = ["object is not callable", "NoneType object is not iterable", "shape mismatch"]  # words that are known
    foreign = ["IndentationError", "too many values to unpack", *apart]
    assert tab.evaluate(told, [*foreign, "use_reentrant", *expected()]) == foreign


@pytest.mark.parametrize(
    "alike",
    [
        ("all_reduce()", "all-reduce", "allreduce", "AllReduce", "all reduce"),
        ("microbatch size", "micro-batch size", "micro batch size"),
        ("gradient accumulation", "gradient acumulation", "how to do gradient accumulation?"),
    ],
)
def test_queries_that_mean_the_same_have_the_same_answer(tab: Any, alike: tuple[str, ...]) -> None:
    assert len({answer[0] for answer in tab.evaluate(ASK, list(alike))}) == 1


def test_a_term_is_found_when_it_is_joined_or_misspelt(tab: Any) -> None:
    swapped = "(term) => term.replace(/(?<=^.{3,}?)([a-z])(?!\\1)([a-z])/, '$2$1')"
    for change in ("(term) => term.replace(/[ -]/g, '')", "(term) => term.replace(/[ -]/g, '_')", swapped):
        lost = """change => shardlabSections.filter(({ id }) => id.startsWith("term-"))
            .map(({ title }) => title.split(", ")[0]).filter((term) => /^[A-Za-z -]{7,}$/.test(term))
            .filter((term) => new Set([term, change(term)].map((each) => shardlabSearch(each)[0].entry)).size > 1)"""
        assert tab.evaluate(f"({lost})({change})") == []


def test_who_asks_what_a_term_is_reads_its_definition(tab: Any) -> None:
    """The glossary's entry comes first; to the term alone it comes second at the latest."""
    terms = """shardlabSections.filter(({ id }) => id.startsWith("term-"))
        .map(({ page, id, title }) => [`${page}#${id}`, title.split(", ")[0]])"""
    places, names = zip(*tab.evaluate(terms), strict=True)
    alone = zip(places, names, tab.evaluate(ASK, names), strict=True)
    assert [name for place, name, found in alone if place not in found[:2]] == []
    forms = ["what is {}", "What is a {}?", "what's the {}", "{} meaning", "define {}", "what does {} mean?"]
    queries = [form.format(name) for name, form in zip(names, itertools.cycle(forms), strict=False)]
    asked = zip(places, queries, tab.evaluate(ASK, queries), strict=True)
    assert [query for place, query, found in asked if found[0] != place] == []
    assert [found[0] for found in tab.evaluate(ASK, ["what are microbatches", "what are stragglers?"])] == [
        "book/glossary#term-microbatch",
        "book/glossary#term-straggler",
    ]


def test_chapters_stand_before_the_reference(tab: Any) -> None:
    firsts = tab.evaluate(ASK, ["ring attention", "FSDP", "bubble", "grad norm", "straggler", "torchrun"])
    assert [answer[0] for answer in firsts if "reference" in answer[0]] == []


def test_no_sign_leaves_a_blank_page(tab: Any, site: Path) -> None:
    """Every printable sign, alone and in a word: hits, or a sentence that there are none."""
    queries = [query for sign in string.punctuation for query in (sign, f"all{sign}reduce", f"{sign}rank{sign}")]
    assert [query for query in [*queries, "qqqqqq", "tp=8, pp=2"] if not tab.evaluate(SHOW, query)] == []
    signs = quote('loss = nan, "80 %" <pad>')
    tab.goto(f"{site.as_uri()}/search.html?q={signs}")
    tab.locator("ul.search li mark").first.wait_for()


def test_excerpts_have_no_tex_and_fit_a_phone(tab: Any, site: Path) -> None:
    assert tab.evaluate("shardlabSections.filter(({ text }) => /\\\\(frac|text|,|beta|cdot)/.test(text)).length") == 0
    keys = r"/\b[a-z]{3,}(19|20)\d\d[a-z]?\b|\s_[a-z]\b/"  # of references, and a sign's index without its sign
    assert tab.evaluate(f"shardlabSections.flatMap(({{ text }}) => text.match({keys}) ?? [])") == []
    tab.goto(f"{site.as_uri()}/search.html?q=bytes%20per%20parameter")
    tab.locator("ul.search li p").first.wait_for()
    found = tab.evaluate("shardlabSearch('bytes per parameter').length")
    assert tab.locator("#search-results [role=status]").inner_text() == f"30 of {found} places, the best first"
    tab.evaluate("shardlabShow('Expected all tensors to be on the same device')")
    assert "Expected all tensors to be on the same device" in tab.locator("ul.search li p").first.inner_text()
    assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_a_keyboard_is_enough(tab: Any) -> None:
    tab.goto(tab.url.replace("q=rank", "q="))
    tab.keyboard.type("역전파")  # the cursor is there
    tab.keyboard.press("Enter")
    tab.locator("ul.search li a").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_url("**glossary.html?find=**#term-backward")
    tab.locator("mark").first.wait_for(state="attached")
