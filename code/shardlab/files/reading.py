"""How many minutes a page takes: `minutes: {text: 35, code: 75, second: 25}` in its header."""

import re
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(
    r"^minutes: \{text: (?P<text>\d+), code: (?P<code>\d+)(?:, second: (?P<second>\d+))?\}$", re.M
)


@dataclass(frozen=True)
class Minutes:
    """What a page takes: its text, its main line with code and figures, its second sitting."""

    text: int
    code: int
    second: int = 0

    def __str__(self) -> str:
        """Say them in the words that stand below a title."""
        words = f"{self.text} minutes for the text, {self.code} with the code"
        if self.text == self.code:
            words = f"{self.code} minutes"
        second = f", and {self.second} for the second sitting" if self.second else ""
        return f"about {words}{second}"


def minutes(page: Path) -> Minutes | None:
    """Return the minutes of a page without its exercises, or None where its header has none."""
    text = page.read_text(encoding="utf-8")
    found = LINE.search(text.partition("\n---\n")[0]) if text.startswith("---\n") else None
    if found is None:
        return None
    return Minutes(**{name: int(each or 0) for name, each in found.groupdict().items()})
