"""What surrounds a launcher: temporary folders, the current folder, and standard streams."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "shardlab"  # then the host and the process of the launcher, which may share /tmp


@contextmanager
def temporary() -> Iterator[str]:
    """Make a folder, for ranks to meet in; remove it, and those that killed launchers have left."""
    host = socket.gethostname()
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}-{host}-*-*"):
        if not _runs(left.name.split("-")[-2]):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{PREFIX}-{host}-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def _runs(process: str) -> bool:
    """Tell whether a process of this number runs."""
    with suppress(ValueError, PermissionError):
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
    return True


def current() -> str:
    """Return the current folder. Errors: ValueError if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError("the current folder has been deleted; change to another one") from None


def open_standard_streams() -> None:
    """Open /dev/null wherever this process was started without standard streams (`>&-`).

    A channel to a rank would otherwise get such a number, and be taken for what the rank prints.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 (standard error)
        os.set_inheritable(opened, True)
    os.close(opened)
