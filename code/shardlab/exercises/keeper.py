"""Stand between the grader and a handed-in file, and end every process that the file has started.

    python keeper.py LEASH CHANNEL COMMAND ...

A file that kills its parent kills this process, and not the grader. LEASH and CHANNEL are open
descriptors. The command inherits CHANNEL. When the command has ended, or the other end of LEASH is
closed, all processes below this one are killed, also those that have left their parents. `grader`
runs this file by its path, which imports nothing of the package and starts in 0.02 s, and kills
what is left where this process itself was killed. All of them may gain no privileges, which no
process can undo, and by which `grader` tells them from other children of its own.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PARENT_DEATH_SIGNAL, DUMPABLE, CHILD_SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 36, 38  # of prctl(2)
PAUSE = 0.05  # s between two looks whether the command has ended
PATIENCE = 5.0  # s in which all processes must have ended


def keep(leash: int, channel: int, command: list[str]) -> int:
    """Run the command on a leash; return its exit status, as a shell would: 128 + a signal."""
    adopt()
    _prctl(NO_NEW_PRIVILEGES, True)
    child = subprocess.Popen(
        command, pass_fds=[channel], start_new_session=True, preexec_fn=end_with_parent
    )
    os.close(channel)
    while child.poll() is None and not select.select([leash], [], [], PAUSE)[0]:
        pass
    status = child.poll() or 0
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    end_children(set())
    return status if status >= 0 else 128 - status


def adopt(orphans: bool = True) -> None:
    """Become the parent of every process further below whose own parent ends, or not; on Linux."""
    _prctl(CHILD_SUBREAPER, orphans)


def hide() -> None:
    """Let no process of the same user debug this one, or write into its memory; on Linux."""
    _prctl(DUMPABLE, False)


def end_with_parent() -> None:
    """Let this process be killed when its parent ends; on Linux."""
    _prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_children(spared: set[int]) -> None:
    """Kill our children from a keeper until none is left; their children then become ours.

    spared: those that were ours before.
    """
    end = time.monotonic() + PATIENCE
    while (pids := set(filter(_kept, children() - spared))) and time.monotonic() < end:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(PAUSE)


def children() -> set[int]:
    """List the processes whose parent is this one; none where there is no /proc."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if int(parent) == os.getpid():
                found.add(int(file.parent.name))
    return found


def _kept(pid: int) -> bool:
    """Tell whether a child of ours began below a keeper: without privileges, in another session.

    Where this process itself may gain none, as in some containers, only the session tells.
    """
    with suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        return "\nNoNewPrivs:\t0" not in status and os.getsid(pid) != os.getsid(0)
    return False


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
