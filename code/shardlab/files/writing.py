"""A new folder for a reader: whole, or not there at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .project import PACKAGE


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and those above it; where it cannot be filled, remove what was made.

    Errors: ValueError, in a sentence, for a name that is in use or cannot be one, for a place
    inside this package, and for an OSError of the caller, such as that of a full disk.
    """
    made: list[Path] = []
    try:
        if folder.resolve().is_relative_to(PACKAGE):
            raise ValueError("it lies inside the package; choose a place outside")
        made += [each for each in folder.parents if not each.exists()]
        folder.mkdir(parents=True)
    except (OSError, ValueError) as error:
        _remove(made)
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{folder} must be a new folder: {reason}") from error
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        _remove(made)
        if not isinstance(error, OSError):
            raise
        raise ValueError(f"{folder} cannot be written: {error.strerror or error}") from error


def _remove(folders: list[Path]) -> None:
    """Remove empty folders, the innermost first; one that somebody else has filled stays."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()
