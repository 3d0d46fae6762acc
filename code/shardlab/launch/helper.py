"""The helper process: import torch once, stay idle and single-threaded, and fork ranks on demand.

Forking the notebook's own kernel would be unsafe: a lock that another thread holds at that moment
stays locked in the child forever. A process that never computes holds no such lock. Where fork does
not exist or is unwise (macOS), every rank is a fresh interpreter, which is slower.

The launcher has one socket to the helper and one to each rank. It sends the helper two descriptors
per rank and names of modules, with their length; or a zero and no descriptors, which ends the ranks
and which the helper answers with their exit codes. When one side of a socket is gone, the other
exits, so that nothing outlives the notebook.
"""

import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from .modules import Modules
from .rank import be_rank

PRELOADED = (  # modules that a rank would need seconds to import
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "safetensors",
    "cloudpickle",
    "shardlab.launch.contracts",
    "shardlab.launch.meeting",
    "shardlab.launch.peers",
)
OF_RANKS = ("TORCH_DISTRIBUTED_DEBUG",)  # environment that a rank reads, and may find wrong
SIZE = 4  # bytes of the length at the start of a message
LOOK = 0.1  # s between two looks whether the launcher still lives, during imports
FLAGS, EXITING = 6, 4  # place in /proc/PID/stat after the name, and PF_EXITING of <linux/sched.h>
COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), since Linux 6.1


def serve(descriptor: int, fork: bool, launcher: int) -> NoReturn:
    """Fork ranks and reap them, for as long as the process `launcher` lives."""
    # Children inherit what a launcher ignores and blocks: that hides how ranks ended, and keeps
    # alive the processes that they started.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if fork:
        with _ending_with(launcher):
            for name in PRELOADED:
                importlib.import_module(name)
        _share()
    channel = socket.socket(fileno=descriptor)
    modules = Modules()
    huge = not fork  # whether there are huge pages, or no use for them
    ranks: list[int] = []  # their processes
    problem = ""
    while True:
        length, descriptors = _next_message(channel, launcher)
        codes = _end(ranks)  # also before others start: Ctrl-C may have kept the zero away
        ranks = []
        if not length:  # the launcher is gone
            os._exit(0)
        elif descriptors:
            names = channel.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            if fork and modules.keep_up(names.decode().split()):
                _share()
            ranks, problem = _start(descriptors, fork, channel.fileno())
        else:
            with suppress(OSError):  # after a second Ctrl-C nobody listens
                channel.sendall(pickle.dumps(problem or codes))
            if not huge:
                _use_huge_pages()  # now that nobody waits
                huge = True


@contextmanager
def _ending_with(launcher: int) -> Iterator[None]:
    """End this process soon after the launcher has ended, even amid imports that take seconds."""
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == launcher or os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LOOK, LOOK)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _share() -> None:
    """Keep the garbage collector off all present objects, so that ranks share their pages."""
    gc.collect()
    gc.freeze()


def _use_huge_pages() -> None:
    """Put this process's memory into pages of 2 MiB, where the system has them.

    A fork copies an entry for each page, and the end of a rank deletes them: 50,000 small pages
    take half of the processor time of a rank that does nothing.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for line in lines:
        addresses, access, _offset, _device, file, *name = line.split()
        if access == "rw-p" and file == "0" and name in ([], ["[heap]"]):
            start, end = (int(each, 16) for each in addresses.split("-"))
            length = ctypes.c_size_t(end - start)
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), length, COLLAPSE)


def _next_message(channel: socket.socket, launcher: int) -> tuple[bytes, list[int]]:
    """Receive the length of the next message, and its descriptors; b"" when the launcher is gone.

    A child that the launcher forked may keep the other end open, so check the launcher itself, too.
    """
    while not select.select([channel], [], [], 1.0)[0]:
        if os.getppid() != launcher:
            return b"", []
    length, descriptors, _, _ = socket.recv_fds(channel, SIZE, 250)
    return length, descriptors


def _start(descriptors: list[int], fork: bool, channel: int) -> tuple[list[int], str]:
    """Start a rank for each two descriptors; return the processes, and why some are missing."""
    ranks: list[int] = []
    problem = ""
    pairs = list(zip(descriptors[::2], descriptors[1::2], strict=True))
    try:
        for rank, pair in enumerate(pairs):
            ranks.append(_start_rank(rank, *pair, fork, [channel, *descriptors]))
    except OSError as error:
        problem = f"only {len(ranks)} of {len(pairs)} ranks could be started: {error}"
    for each in descriptors:
        os.close(each)
    return ranks, problem


def _start_rank(rank: int, channel: int, output: int, fork: bool, inherited: list[int]) -> int:
    """Start one rank as leader of a process group of its own, and return its process.

    inherited: descriptors that a forked rank must close, except its own two.
    """
    if not fork:
        expression = f"rank.be_rank({rank}, {channel}, {output})"
        return start_python(expression, [channel, output]).pid
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        for each in inherited:
            if each not in (channel, output):
                os.close(each)
        be_rank(rank, channel, output)
    return process


def _end(ranks: list[int]) -> list[int | None]:
    """Kill the ranks and return their exit codes, negative for a signal; None for one that ran.

    Processes that the ranks started get SIGTERM, which multiprocessing's resource tracker ignores:
    it ends by itself after it has tidied up.
    """
    codes: list[int | None] = []
    running = [rank for rank in ranks if not _is_ending(rank)]
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)  # not waited for yet, so its number is not reused
        with suppress(OSError):  # it had not yet become the leader of a group
            os.killpg(rank, signal.SIGTERM)
    for rank in ranks:
        code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
        codes.append(None if rank in running and code == -signal.SIGKILL else code)
    return codes


def _is_ending(process: int) -> bool:
    """Tell whether a process of ours has ended or, on Linux, closes its descriptors to end.

    The launcher may learn that they are closed before there is an exit code.
    """
    if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        return True
    with suppress(OSError):  # not Linux
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return bool(int(fields[FLAGS]) & EXITING)
    return False


def start_python(expression: str, descriptors: list[int]) -> "subprocess.Popen[bytes]":
    """Evaluate an expression of this package in a fresh interpreter that has the descriptors.

    The interpreter gets a session of its own, so that Ctrl-C reaches only the notebook, which then
    ends the ranks in order.
    """
    folders = [entry for entry in sys.path if isinstance(entry, str)]  # Python reads no others
    path = f"import sys; sys.path[:] = {folders!r}"
    package = "from shardlab.launch import helper, rank"
    program = f"{path}; {package}; {expression}"
    return subprocess.Popen(
        [sys.executable, "-c", f"exec({program!r}, {{}})"],  # without names in `__main__`
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in OF_RANKS},
    )
