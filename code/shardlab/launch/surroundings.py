"""What surrounds a launcher: temporary folders, the current folder, and standard streams."""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "shardlab-ranks"  # then the host of the launcher, with which others may share /tmp


@contextmanager
def temporary() -> Iterator[str]:
    """Make a folder, for ranks to meet in; remove it, and those that killed launchers have left.

    A launcher holds a lock on its folder: other containers that share /tmp do not see its process.
    """
    open_standard_streams()  # else the folder's descriptor would become one
    prefix = f"{PREFIX}-{socket.gethostname()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), _opened(left) as descriptor:  # also where another holds the lock
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    folder = made.with_name(made.name[1:])
    try:
        with _opened(made) as descriptor:
            with suppress(OSError):  # a file system without locks; then none is removed there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            made.rename(folder)  # others look at it only now
            yield str(folder)
    finally:
        for each in (made, folder):
            shutil.rmtree(each, ignore_errors=True)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder, and give its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
