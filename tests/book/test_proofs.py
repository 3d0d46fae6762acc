"""The proof page: every recorded claim is a marked test of today, and every file of results is shown."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterator

import pytest

from shardlab.files import measured

from .conftest import ROOT
from .test_back_matter import tables

AGAIN = "run python bench/proofs.py"


def marked() -> Iterator[tuple[str, str, str, str]]:
    """(test, kind, chapter, claim) of all marks, read from the text of the tests."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", []):
                name = ast.unparse(mark).partition("(")[0]
                if name in ("pytest.mark.parity", "pytest.mark.counted"):
                    chapter, claim = (ast.literal_eval(argument) for argument in mark.args)
                    yield f"{path.relative_to(ROOT).as_posix()}::{node.name}", name[12:], chapter, claim


def recorded() -> list[tuple[str, str, str, str]]:
    rows = measured.results("proofs")["proofs"]
    return [(row["test"], row["kind"], row["chapter"], row["claim"]) for row in rows]


def test_every_recorded_claim_is_a_test_and_every_marked_test_is_recorded() -> None:
    assert sorted(recorded()) == sorted(marked()), AGAIN


def test_a_claim_is_said_once_and_belongs_to_a_chapter() -> None:
    claims = [(kind, chapter, claim) for _, kind, chapter, claim in marked()]
    assert len(set(claims)) == len(claims)
    assert {chapter for _, chapter, _ in claims} <= {path.stem for path in (ROOT / "book").glob("*.md")}


@pytest.mark.parametrize("row", measured.results("proofs")["proofs"], ids=lambda row: row["test"].partition("::")[2])
def test_what_is_recorded_is_within_what_is_allowed(row: dict[str, float]) -> None:
    """In doubt nothing was compared: then no number is claimed either."""
    assert row["cases"] > 0
    assert row["numbers"] == 0 or row["difference"] <= row["allowed"]
    assert ("difference" in row) == (row["numbers"] > 0)


def test_the_page_shows_every_claim_and_every_file_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "book")
    text = tables("measured.md", monkeypatch)
    plain = html.unescape(re.sub("<wbr>", "", text))
    for test, _, _, claim in recorded():
        assert f"{claim}<br>" in plain
        assert test.removeprefix("tests/") in plain
    for path in (ROOT / "bench" / "results").glob("*.json"):
        found = measured.results(path.stem)
        assert measured.setting(found) in plain, path.stem
        if path.stem in {"proofs", "starts", "endings", "published_models"}:  # above, on another page, in its file
            continue
        assert f"<strong>{path.stem}</strong>" in plain
        for caption in measured.tables(found):
            assert f"<caption>{caption}</caption>" in plain


def test_all_numbers_of_a_file_of_results_are_in_its_tables() -> None:
    for stem in measured.stems():
        found = measured.results(stem)
        shown = " ".join(str(cell) for rows in measured.tables(found).values() for row in rows for cell in row)
        spreads = numbers(found)
        assert [x for x in spreads if x not in shown] == [], stem


def numbers(x: object) -> list[str]:
    """How each spread, and each number outside of one, is written in a table."""
    if isinstance(x, dict) and x.keys() == measured.SPREAD:
        return [f"{x['median']:.3g} ({x['quartile 1']:.3g}-{x['quartile 3']:.3g})"]
    if isinstance(x, dict):
        return [each for key, value in x.items() if key != "setting" for each in numbers(value)]
    if isinstance(x, list):
        return [each for value in x for each in numbers(value)]
    return [str(x)]
