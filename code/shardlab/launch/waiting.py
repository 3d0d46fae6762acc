"""Tell whether this rank waits for other ranks, and for nothing that would happen without them.

Linux shows in which system call each thread sleeps (proc(5), syscall and wchan), and so when its
wait ends by itself. A wait ends by itself if it has a time limit before that of the run, waits for
a clock, a file or another program, or shares its lock with another process.

A thread of yours that wakes now and then, such as a heartbeat, may be about to do anything: while
one lives, a deadlock is not noticed before the run's time limit. With a signal handler of yours, a
deadlock is noticed only where the main thread waits in torch, which lets no handler run. An event
loop that is idle, and to which no other process can write, wakes nobody. A lock that processes
share may be released by any of them, so while one holds a rank, no deadlock is noticed. An event
loop that watches an eventfd, such as that of uvloop, counts as such a thread: the kernel writes
there when a disk has been read, and what it waits for is not shown.
"""

import importlib.util
import os
import signal
import socket
import struct
import sys
import threading
import time
from math import inf
from pathlib import Path
from types import FrameType

TASKS = Path("/proc/self/task")
# kernel functions in which a thread sleeps until another thread wakes it, or a peer writes to it
FUTEX, WAKEABLE = "futex", ("futex", "do_epoll_wait", "ep_poll")
TIMESPEC = struct.Struct("qq")  # s, ns
# operations and flags of futex(2)
WAIT, WAIT_BITSET, OPERATION, PRIVATE, REAL_TIME = 0, 9, 127, 128, 256
FOREVER = 0xFFFFFFFF  # -1 as the time limit of epoll_wait(2), in ms
CREDENTIALS = struct.Struct("iii")  # process, user and group, see SO_PEERCRED in unix(7)

# files of code in which the main thread may wait
STORE, PEERS = (str(Path(__file__).with_name(name)) for name in ("meeting.py", "peers.py"))
_FOUND = importlib.util.find_spec("torch")
TORCH = [folder + os.sep for folder in getattr(_FOUND, "submodule_search_locations", None) or ()]

run_began, run_ends = -inf, inf  # time.monotonic(); the launcher stops the run when it ends
ended_in_store = 0  # waits for another rank's entry in the store of `meeting`


def main_frame() -> FrameType | None:
    """Return the innermost Python frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def for_ranks_alone(finished: bool) -> bool:
    """Tell whether only other ranks can wake this one. Errors: OSError where that is not shown."""
    asleep = finished or in_store() or not _ends_by_itself(os.getpid())
    return asleep and (finished or not _handles_signals()) and _nobody_wakes_it()


def in_store() -> bool:
    """Tell whether the main thread waits for another rank's entry in the store."""
    frame = main_frame()
    return frame is not None and frame.f_code.co_filename == STORE


def _handles_signals() -> bool:
    """Tell whether a signal may call a function of yours; while torch waits, Python calls none."""
    frame = main_frame()
    if frame is None or frame.f_code.co_filename.startswith((PEERS, *TORCH)):
        return False
    handlers = {signal.getsignal(each) for each in signal.valid_signals()}
    handlers.discard(signal.default_int_handler)
    return any(callable(each) and not _of_asyncio(each) for each in handlers)


def _of_asyncio(handler: object) -> bool:
    """Tell whether `asyncio.run` has set a handler, for a Ctrl-C that no rank gets."""
    return getattr(getattr(handler, "func", None), "__module__", "") == "asyncio.runners"


def _nobody_wakes_it() -> bool:
    """Tell whether no other thread of this rank will wake the main thread."""
    ours = {thread.native_id for thread in threading.enumerate()}
    if len(sys._current_frames()) > len(ours):  # some were started without `threading`
        return False
    asking = threading.get_native_id()
    for thread in {int(each) for each in os.listdir(TASKS)} - {os.getpid(), asking}:
        if thread in ours and _ends_by_itself(thread):
            return False
        where = _sleeps_in(thread)
        if where != "0" and not where.startswith(WAKEABLE):  # "0" while it runs
            return False
    return True


def _sleeps_in(thread: int) -> str:
    """Return the kernel function in which a thread sleeps."""
    return (TASKS / str(thread) / "wchan").read_text()


def _ends_by_itself(thread: int) -> bool:
    """Tell whether a thread runs, or sleeps in a wait that may end without another thread."""
    where = _sleeps_in(thread)
    if not where.startswith(WAKEABLE):
        return True
    words = (TASKS / str(thread) / "syscall").read_text().split()
    if words[0] in ("running", "-1"):  # by now, or in no system call, see proc(5)
        return True
    _number, first, second, _, limit, *_ = (int(word, 0) for word in words)
    # epoll_wait(epoll, events, count, limit) or futex(address, operation, value, limit)
    if not where.startswith(FUTEX):
        return limit & FOREVER != FOREVER or _hears_others(first)
    if not second & PRIVATE:  # any process that shares the lock may release it
        return True
    return time.monotonic() + _seconds_left(second, limit) < run_ends


def _hears_others(epoll: int) -> bool:
    """Tell whether another process may write to a socket that epoll(7) watches.

    Errors: OSError where it watches anything but sockets.
    """
    if _has_children():
        return True
    lines = Path(f"/proc/self/fdinfo/{epoll}").read_text().splitlines()
    watched = [line.split()[1] for line in lines if line.startswith("tfd:")]
    return not all(_is_ours(int(each)) for each in watched)


def _is_ours(descriptor: int) -> bool:
    """Tell whether this process has made both ends of a socket."""
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as copy:
        peer = copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process, _user, _group = CREDENTIALS.unpack(peer)
    return int(process) == os.getpid()


def _seconds_left(operation: int, limit: int) -> float:
    """Return the seconds after which futex(2) gives up; limit: the address of its struct timespec.

    The kernel does not show when a relative time limit began; not before the run, at any rate.
    """
    if not limit:
        return inf
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        seconds, nanoseconds = TIMESPEC.unpack(os.pread(memory, TIMESPEC.size, limit))
    finally:
        os.close(memory)
    end: float = seconds + nanoseconds / 1e9
    if operation & OPERATION == WAIT:
        return run_began + end - time.monotonic()
    if operation & OPERATION == WAIT_BITSET:
        return end - (time.time() if operation & REAL_TIME else time.monotonic())
    return 0.0


def _has_children() -> bool:
    """Tell whether a process that this rank has started is alive, and may hold its lock."""
    return any((TASKS / each / "children").read_text() for each in os.listdir(TASKS))
