"""The folders of checkpoints: only a complete checkpoint has its name, whenever a run is killed."""

import os
import shutil
from pathlib import Path

NAME = "step-{:08d}"


def latest(folder: str | Path) -> Path | None:
    """Return the last complete checkpoint in a folder; None if there is none."""
    found = complete(Path(folder))
    return found[-1] if found else None


def complete(folder: Path) -> list[Path]:
    """List the complete checkpoints, oldest first."""
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


def flush(folder: Path) -> None:
    """Write the names in a folder to the disk; DCP does so with the contents of its files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
