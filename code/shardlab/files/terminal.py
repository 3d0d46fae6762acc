"""A command at a terminal: one line for what is wrong, and an output that may close early."""

import os
import sys
from collections.abc import Callable

from .given import line

NOT_WRITTEN, INTERRUPTED, CLOSED_EARLY = 2, 130, 141  # as shells report SIGINT and SIGPIPE


def complain(message: str) -> None:
    """Print one short line on standard error, if there is one."""
    if sys.stderr:
        print(line(message), file=sys.stderr)


def guarded(main: Callable[[], int]) -> int:
    """Run a command of this process; return its exit status.

    An output that closes early, as `| head` does, ends it without a word.
    """
    if not sys.stdout:
        complain("the answer cannot be written: the output is closed; give it another place")
        return NOT_WRITTEN
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of the output, such as: | head, > /dev/full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return CLOSED_EARLY
        complain(f"the answer cannot be written: {error.strerror}; give it another place")
        return NOT_WRITTEN
