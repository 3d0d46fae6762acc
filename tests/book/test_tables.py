"""Tables: whoever reads one can say which, and its numbers stand below each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .conftest import ROOT
from .test_pages import EVERY_PAGE, LISTED

NUMBER = re.compile(r"[-+]?[\d,.]+( ?%)?")
DATA = re.compile(r'<details class="explorer-data".*?</details>', re.DOTALL)
TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
LABEL = re.compile(r'<caption[^>]*><span class="caption-number">Table ([\d.]+) </span>')
CHAPTER = re.compile(r'<h1><span class="section-number">(\d+)\. ')


def written() -> Iterator[tuple[str, list[list[str]], bool]]:
    """The tables of the book's sources: page, rows of cells without the header, whether each has a caption."""
    for name in LISTED:
        lines = (ROOT / f"{name}.md").read_text().splitlines()
        for at, line in enumerate(lines):
            if re.fullmatch(r"\|[ :|-]+\|", line):
                end = next(i for i in range(at, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
                rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in lines[at:end]]
                yield name, rows, "{table}" in "".join(lines[max(0, at - 4) : at])


def test_written_columns_of_numbers_end_at_the_right_and_their_tables_have_captions() -> None:
    found = 0
    for name, (marks, *body), captioned in written():
        columns = [[cell.strip() for cell in column] for column in zip(*body, strict=True)]
        for mark, column in zip(marks, columns, strict=True):
            if all(NUMBER.fullmatch(cell) for cell in column) and column != [*map(str, range(len(column)))]:
                found += 1
                assert mark.strip().endswith("-:"), (name, column)
                assert captioned, (name, column)
                assert len({len(cell.partition(".")[2]) for cell in column}) == 1, (name, column)
    assert found


@EVERY_PAGE
def test_every_table_of_numbers_has_a_caption_with_its_number(site: Path, page_name: str) -> None:
    tables = TABLE.findall(DATA.sub("", (site / f"{page_name}.html").read_text()))
    bare = [text for text in tables if "numbers" in text.partition(">")[0] and not LABEL.search(text)]
    assert bare == []


def test_tables_are_counted_in_each_chapter_and_through_the_rest(site: Path) -> None:
    rest: list[str] = []
    chapters = 0
    for name in LISTED:
        page = (site / f"{name}.html").read_text()
        labels = LABEL.findall(page)
        if chapter := CHAPTER.search(page):
            chapters += 1
            assert labels == [f"{chapter[1]}.{at}" for at in range(1, len(labels) + 1)], name
        else:
            rest += labels
    assert rest == [str(at) for at in range(1, len(rest) + 1)]
    assert chapters == 18
    assert rest
