"""A line for a person who waits: ranks that start (the first time torch is imported), ranks that are long at work.

It appears after a second and goes when the run ends. A file, a test or a page of the book never sees it.
"""

import os
import sys
import time
from typing import Any

PATIENCE = 1.0  # seconds before the line appears
WIPE = "\r\x1b[K"  # to the start of the terminal's line, and erase it


class Progress:
    """What one run shows while it lasts."""

    def __init__(self) -> None:
        self.began, self.shown, self.notebook = time.monotonic(), False, _notebook()

    def tell(self, at_work: int, num_ranks: int) -> None:
        """Show how far the run is, if it has taken long and somebody looks; `at_work` ranks call their function."""
        seconds = time.monotonic() - self.began
        if seconds >= PATIENCE:
            what = "at work" if at_work == num_ranks else "starting (torch is being imported)"
            self._write(f"{num_ranks} rank{'s' * (num_ranks > 1)} {what}: {seconds:.0f} s")

    def hide(self) -> None:
        """Make room for other output, or end."""
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
    """The live notebook this process is the kernel of, or None; a kernel that builds a page has nobody who waits."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if hasattr(shell, "kernel") and os.environ.get("SHARDLAB_STATIC") != "1" else None


_displays: dict[int, Any] = {}  # number of a cell's execution -> its line, one for all runs of the cell


def _replace_display(shell: Any, line: str) -> None:
    from IPython.display import display

    text = {"text/plain": line} if line else {"text/html": ""}
    if shell.execution_count not in _displays:
        _displays.clear()
        _displays[shell.execution_count] = display(text, raw=True, display_id=True)
    else:
        _displays[shell.execution_count].update(text, raw=True)
