"""Every chapter's header has its minutes, and the syllabi print the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlab import exercises
from shardlab.files import reading

BOOK = Path(__file__).parents[2] / "book"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("minutes: {text: 7, code: 7}", "about 7 minutes"),
        ("minutes: {text: 35, code: 75}", "about 35 minutes for the text, 75 with the code"),
        (
            "minutes: {text: 35, code: 75, second: 8}",
            "about 35 minutes for the text, 75 with the code, and 8 for the second sitting",
        ),
    ],
)
def test_minutes_are_said(tmp_path: Path, header: str, said: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"---\n{header}\n---\n\n# Title\n")
    assert str(reading.minutes(page)) == said


def test_a_page_without_minutes_has_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nminutes: {text: 7, code: 7}\n")
    assert reading.minutes(page) is None


def test_the_syllabi_have_the_minutes_of_the_pages() -> None:
    row = re.compile(r"^\| \d+(?: to \d+)? \[.*?\]\((\w+)\.md\) \|(?:.*?\|)? (\d+ / \d+ / \S+) \|", re.MULTILINE)
    rows = row.findall((BOOK / "course.md").read_text())
    assert len(rows) == 3 + 6 + 1 + len(exercises.CHAPTERS)  # one is the lab on profiles
    for stem, printed in rows:
        needed = reading.minutes(BOOK / f"{stem}.md")
        parts = needed.text, needed.code, needed.second or "\N{EN DASH}"
        assert printed == " / ".join(map(str, parts)), stem
