"""Keeps the guesses of a live notebook in a file below the current folder; nothing leaves the machine."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(".shardlab", "guesses.jsonl")


class Kept(NamedTuple):
    """A guess as it was typed, and the day on which it was made."""

    given: str
    day: datetime.date


def keep(name: str, given: str) -> None:
    """Append a guess and the present time to the file, or do nothing where no file can be written."""
    line = {"name": name, "given": given, "at": datetime.datetime.now().isoformat(timespec="seconds")}
    try:
        FILE.parent.mkdir(exist_ok=True)
        with FILE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError:
        pass


def kept(name: str) -> Kept | None:
    """Return the latest guess of this name, or None; lines that cannot be read are skipped."""
    try:
        lines = FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found = (_parsed(line, name) for line in reversed(lines))
    return next(filter(None, found), None)


def _parsed(line: str, name: str) -> Kept | None:
    try:
        fields = json.loads(line)
        if fields["name"] == name:
            return Kept(str(fields["given"]), datetime.datetime.fromisoformat(fields["at"]).date())
    except (ValueError, KeyError, TypeError):  # half a line, or somebody else's
        pass
    return None
