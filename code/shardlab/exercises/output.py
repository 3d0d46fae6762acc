"""Show the first and the last lines of what a learner's function prints, however much it prints."""

import sys
from collections import deque
from collections.abc import Callable
from typing import TextIO

from shardlab.files.given import shown

FIRST = LAST = 100  # lines that are shown
WIDTH = 300  # characters of a line that are shown
MEGA = 1e6


def quoted(line: str) -> str:
    """Mark a line as one that a handed-in file has printed, so that no verdict can be forged."""
    return f"  | {shown(line)}"


class Ends:
    """A stream that passes on the first lines at once, and the last ones at the end."""

    def __init__(self, target: TextIO, form: Callable[[str], str] = str) -> None:
        self.target = target
        self.form = form
        self.encoding = getattr(target, "encoding", None)
        self._begin()

    def _begin(self) -> None:
        self.begun = ""  # a line without its end
        self.num_lines = 0
        self.num_characters = 0
        self.last: deque[str] = deque(maxlen=LAST)

    def write(self, text: str) -> int:
        """Take any text; lines are passed on or kept when they are complete."""
        self.num_characters += len(text)
        *lines, begun = (self.begun + text).split("\n")
        self.begun = begun[: WIDTH + 1]
        for line in lines:
            self._add(line)
        return len(text)

    def _add(self, line: str) -> None:
        line = line if len(line) <= WIDTH else f"{line[:WIDTH]} ..."
        if self.num_lines < FIRST:
            print(self.form(line), file=self.target)
        else:
            self.last.append(line)
        self.num_lines += 1

    def flush(self) -> None:
        """Let the target show what it has."""
        self.target.flush()

    def finish(self) -> None:
        """Pass on the last lines, say how much was left out before them, and begin anew."""
        if self.begun:
            self._add(self.begun)
        left_out = self.num_lines - FIRST - len(self.last)
        if left_out > 0:
            size = f"{self.num_characters / MEGA:.1f} MB in all"
            print(f"... {left_out:,} lines are left out ({size}) ...", file=self.target)
        for line in self.last:
            print(self.form(line), file=self.target)
        self.flush()
        self._begin()


def standard() -> TextIO:
    """Return this process's standard output, which shows unknown letters as escapes."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return sys.stdout
