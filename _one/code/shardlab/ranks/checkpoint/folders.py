"""The folders of checkpoints: only a complete checkpoint has its name, whenever a run is killed."""

import os
import shutil
from pathlib import Path

NAME = "step-{:08d}"


def named(folder: Path) -> list[Path]:
    """List what has the name of a checkpoint, oldest first."""
    return sorted(folder.glob(NAME.format(0).replace("0", "[0-9]")))


def delete(path: Path) -> None:
    """Delete a checkpoint; it loses its name first, because only complete ones have one."""
    nameless = path.with_name(f".{path.name}.old")
    path.rename(nameless)
    shutil.rmtree(nameless)


def delete_partial(folder: Path) -> None:
    """Delete partial checkpoints, which a killed run has left."""
    for left in [*folder.glob(".step-*.part"), *folder.glob(".step-*.old")]:
        shutil.rmtree(left)


def flush(path: Path) -> None:
    """Write a file to the disk, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
