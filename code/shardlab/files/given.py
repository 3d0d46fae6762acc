"""What a reader gives: a file that is read, and text that a terminal shows."""

import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

MEGA = 10**6
MOST_BYTES = 100 * MEGA  # of a file: more is a mistake
END = 600  # characters of each end of a long message
ALIKE = 0.8  # how alike a mistyped name is to what was meant: difflib's ratio
LONG_NUMBER = re.compile(r"(\d{8})\d{9,}(\d{8})")


def read(path: str | Path, most: int = MOST_BYTES) -> str:
    """Read a regular file of at most `most` bytes, in UTF-8. Errors: ValueError that names it."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        name = line(str(path))
        raise ValueError(f"{name} cannot be read as UTF-8: {error.reason}") from None


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes. Errors: ValueError that names it."""
    name = line(str(path))
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ValueError(f"{name} cannot be read: it is no regular file")
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise ValueError(f"{name} cannot be read: it has more than {most / MEGA:g} MB")
    return found


def instead(name: str, known: Collection[str]) -> str:
    """Say what may stand in the place of a mistyped name: those spelled alike, or else all."""
    near = get_close_matches(name, known, cutoff=ALIKE)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(known)}"


def shown(text: str, keep: str = "\t\n") -> str:
    """Escape characters that would move a terminal's cursor or change its colours."""
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def line(text: str) -> str:
    """Make one line of a message: escape it, and leave out the middle of what is long."""
    whole = shown(shortened(text), keep="")
    return whole if len(whole) <= 2 * END else f"{whole[:END]} ... {whole[-END:]}"


@contextmanager
def in_one_line() -> Iterator[None]:
    """Make one line of a refusal, as a decorator: a file may hold any text as name or value."""
    try:
        yield
    except ValueError as error:
        raise ValueError(line(str(error))) from error.__cause__


def shortened(text: str) -> str:
    """Leave out the middle of whole numbers that are too long to read."""
    return LONG_NUMBER.sub(r"\1...\2", text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
