"""A progress line for a person who waits while ranks start or work.

The line appears after a second and goes when the run ends. It appears in a terminal and in a live
notebook, and never in a file, a test or a page of the book.
"""

import os
import sys
import time
from typing import Any

PATIENCE = 1.0  # seconds before the line appears
WIPE = "\r\x1b[K"  # to the start of the terminal's line, and erase it


class Progress:
    """The progress line of one run."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.shown = False
        self.notebook = _notebook()

    def show(self, at_work: bool, num_ranks: int) -> None:
        """Show the state of a run that has taken long; at_work: all ranks call the function."""
        seconds = time.monotonic() - self.began
        if seconds >= PATIENCE:
            what = "at work" if at_work else "starting (torch is being imported)"
            self._write(f"{num_ranks} rank{'s' * (num_ranks > 1)} {what}: {seconds:.0f} s")

    def hide(self) -> None:
        """Remove the line, at the end or to make room for other output."""
        if self.shown:
            self._write("")

    def _write(self, line: str) -> None:
        self.shown = bool(line)
        if self.notebook is not None:
            _replace_display(self.notebook, line)
        elif sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(WIPE + line)
            sys.stderr.flush()


def _notebook() -> Any:
    """Return the live notebook of this kernel, or None; nobody waits for one that builds a page."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") and os.environ.get("SHARDLAB_STATIC") != "1" else None


# number of a cell's execution -> its line, which all runs of the cell share
_displays: dict[int, Any] = {}


def _replace_display(shell: Any, line: str) -> None:
    from IPython.display import display

    text = {"text/plain": line} if line else {"text/html": ""}
    if shell.execution_count not in _displays:
        _displays.clear()
        _displays[shell.execution_count] = display(text, raw=True, display_id=True)
    else:
        _displays[shell.execution_count].update(text, raw=True)
