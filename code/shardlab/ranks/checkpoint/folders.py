"""The folders of checkpoints: only a complete checkpoint has its name, whenever a run is killed."""

import os
import re
import shutil
import warnings
from pathlib import Path

NAME = "step-{:08d}"
MAX_STEP = 10**18
NAMED = re.compile(r"step-([0-9]{8,19})")
PARTIAL = re.compile(r"\.step-[0-9]{8,19}\.(part|old)")


def step_in(path: Path) -> int:
    """Return the step in the name of a checkpoint; -1 for another name."""
    found = NAMED.fullmatch(path.name)
    step = int(found[1]) if found else -1
    return step if path.name == NAME.format(step) else -1


def named(folder: Path) -> list[Path]:
    """List what has the name of a checkpoint, oldest first."""
    return sorted((path for path in folder.glob("step-*") if step_in(path) >= 0), key=step_in)


def delete(path: Path) -> None:
    """Delete a checkpoint; it loses its name first, because only complete ones have one.

    Of a link only itself is deleted. What cannot be deleted stays, with a warning.
    """
    nameless = path.with_name(f".{path.name}.old")
    if _removed(nameless):
        try:
            path.rename(nameless)
        except OSError as error:
            _warn(path, error)
        _removed(nameless)


def delete_partial(folder: Path) -> None:
    """Delete partial checkpoints, which a killed run has left; warn of those that stay."""
    for left in folder.glob(".step-*"):
        if PARTIAL.fullmatch(left.name):
            _removed(left)


def _removed(path: Path) -> bool:
    """Delete a folder, a file, or a link but not what it leads to; tell whether nothing is left."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _warn(path, error)
        return False
    return True


def _warn(path: Path, error: OSError) -> None:
    warnings.warn(f"{path} could not be deleted: {error.strerror or error}", stacklevel=2)


def flush(path: Path) -> None:
    """Write a file to the disk, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
