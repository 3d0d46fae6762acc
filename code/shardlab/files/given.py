"""What a reader gives: a file that is read, and text that a terminal shows."""

import re
import stat
from pathlib import Path

MEGA = 10**6
MOST_BYTES = 100 * MEGA  # of a file: more is a mistake
LONG_NUMBER = re.compile(r"(\d{8})\d{9,}(\d{8})")


def read(path: str | Path, most: int = MOST_BYTES) -> str:
    """Read a regular file of at most `most` bytes, in UTF-8. Errors: ValueError that names it."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ValueError(f"{path} cannot be read: it is no regular file")
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(found) > most:
        raise ValueError(f"{path} cannot be read: it has more than {most / MEGA:g} MB")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as UTF-8: {error.reason}") from None


def shown(text: str, keep: str = "\t\n") -> str:
    """Escape characters that would move a terminal's cursor or change its colours."""
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def shortened(text: str) -> str:
    """Leave out the middle of whole numbers that are too long to read."""
    return LONG_NUMBER.sub(r"\1...\2", text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
