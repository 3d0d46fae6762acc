"""The workshop edition: guesses lock outputs, the plain file has holes, no cell misses a name, and changes stay."""

from types import SimpleNamespace

import nbformat
import pytest

from shardlab.exercises import workshop as holes
from shardlab.explorers import guess
from shardlab.files import learner

from .test_notebooks import BOOK, PAGES, lab

import workshop  # isort: skip  # a tool, which the line above makes known

MADE = {stem: made for stem, page in PAGES.items() if (made := workshop.edition(BOOK, page))}
FILES = {"data_parallel", "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline"}


def code(stem: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in MADE[stem].cells if cell.cell_type == "code"]


def needs_and_binds(source: str) -> tuple[set[str], set[str]]:
    return workshop.Part("code", source).names


@pytest.mark.parametrize(
    ("source", "needs", "binds"),
    [
        ("y = x + 1", {"x"}, {"y"}),
        ("x += 1", {"x"}, {"x"}),
        ("for x in range(2):\n    print(x, y)", {"y"}, {"x"}),
        ("def f(a):\n    return a + g(b)\n\ndef g(c):\n    return c", {"b"}, {"f", "g"}),
        ("f()\ndef f(): pass", {"f"}, {"f"}),
        ("try:\n    f()\nexcept E as e:\n    print(e)", {"f", "E"}, {"e"}),
        ("with a() as b:\n    print([c + b for c in d])", {"a", "d"}, {"b"}),
        ("import torch.nn as n, os.path", set(), {"n", "os"}),
    ],
)
def test_names_that_a_cell_needs_and_binds(source: str, needs: set[str], binds: set[str]) -> None:
    found = needs_and_binds(source)
    assert (found[0], found[1] - {"_"}) == (needs, binds)


@pytest.mark.parametrize("stem", MADE)
def test_no_cell_misses_a_name_when_cells_run_in_order(stem: str) -> None:
    nbformat.validate(MADE[stem])
    known: set[str] = set()
    for cell in code(stem):
        needs, binds = needs_and_binds(cell.source)
        if workshop.LISTED not in cell.metadata.get("tags", []):  # its holes hide what they bind
            assert needs - known == set(), cell.source
        known |= binds


@pytest.mark.parametrize("stem", MADE)
def test_every_guess_locks_an_output_below_it(stem: str) -> None:
    asked = []
    for cell in code(stem):
        locks = [line for line in cell.source.splitlines() if line.startswith("guess.made(")]
        assert locks == [f'guess.made("{name}")' for name in asked] or not locks
        asked = asked if not locks else []
        asked += workshop.ASKED.findall(cell.source)
        shown = workshop.shows(cell.source) and workshop.ASKED.search(cell.source) is None
        assert not (asked and shown), f"{asked} should lock {cell.source}"
    assert asked == []


@pytest.mark.parametrize("stem", MADE)
def test_only_drawings_and_guesses_are_folded(stem: str) -> None:
    for cell in code(stem):
        if cell.metadata.get("jupyter"):
            assert any(word in cell.source for word in ("table(", "guess.", "draw", "explorers", "history", "chart"))
    assert "jupyter" not in code(stem)[0].metadata


def test_chapters_with_a_plain_file_have_it_with_holes_and_its_check() -> None:
    found = {stem for stem in MADE for cell in code(stem) if workshop.LISTED in cell.metadata.get("tags", [])}
    assert found == FILES
    for name in FILES:
        sources = [cell.source for cell in code(name)]
        place = sources.index(holes.cell(name).rstrip("\n"))
        assert sources[place + 1] == f'workshop.check("{name}")'
    assert set(MADE) >= {"memory", "failures"}
    assert "glossary" not in MADE


def test_a_guess_lets_the_cell_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[dict[str, str]] = []
    monkeypatch.setattr(learner, "read", lambda kind: records)
    with pytest.raises(guess.NotGuessed, match="Guess first"):
        guess.made("days")
    records.append({"name": "days", "given": "7", "date": "2026-01-01"})
    guess.made("days")


def test_a_changed_workshop_notebook_stays_and_the_newer_edition_comes_beside_it(tmp_path, monkeypatch) -> None:
    book = SimpleNamespace(names={"book/zero": BOOK.names["book/zero"]}, path=BOOK.path, root=BOOK.root)
    editions = iter([1, 2])
    monkeypatch.setattr(lab, "notebook", lambda *_: nbformat.from_dict(MADE["zero"]))
    monkeypatch.setattr(workshop, "edition", lambda *_: edition(next(editions)))
    assert list(lab.update(book, tmp_path)) == []
    path = tmp_path / workshop.FOLDER / BOOK.names["book/zero"]
    mine = nbformat.read(path, as_version=4)
    mine.cells[0].source += "\nmine"
    nbformat.write(mine, path)
    (said,) = lab.update(book, tmp_path)
    assert said == f"{path.name} is kept with your changes; the newer edition is {path.stem}_edition_2.ipynb"
    assert "mine" in path.read_text()
    assert path.with_stem(f"{path.stem}_edition_2").exists()


def edition(number: int) -> nbformat.NotebookNode:
    """A notebook of the chapter, in an edition of its own."""
    made = nbformat.from_dict({**MADE["zero"], "cells": [nbformat.v4.new_markdown_cell(f"{number}", id="a")]})
    made.metadata = nbformat.from_dict({**made.metadata, "shardlab": {"page": "zero", "edition": ""}})
    made.metadata.shardlab.edition = lab.state(made)
    return made
