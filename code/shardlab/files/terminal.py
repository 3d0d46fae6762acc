"""A command at a terminal: one line for what is wrong, and an output that may close early."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .given import line

NOT_WRITTEN, INTERRUPTED, CLOSED_EARLY = 2, 130, 141  # as shells report SIGINT and SIGPIPE


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, and where to look."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse `--gpus=--`, of which Python 3.11 makes an empty list."""
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "'--' is no value")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        complain(f"{message}; `{self.prog} --help` lists the options")
        sys.exit(2)


def no_arguments(text: str | None) -> None:
    """Begin a script that takes none: `--help` prints its text, and anything else is refused."""
    formatter = argparse.RawDescriptionHelpFormatter
    Parser(description=text, formatter_class=formatter).parse_args()


def complain(message: str) -> None:
    """Print one short line on standard error, if there is one."""
    if sys.stderr:
        print(line(message), file=sys.stderr)


def guarded(main: Callable[[], int]) -> int:
    """Run a command of this process; return its exit status.

    An output that closes early, as with `| head`, ends it without a word. Letters that the output
    cannot show, such as some in a file's name, are escaped.
    """
    if not sys.stdout:
        complain("the answer cannot be written: the output is closed; give it another place")
        return NOT_WRITTEN
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
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
