"""The helper process: it imports torch once, stays idle and single-threaded, and forks ranks on demand.

Forking the notebook's own kernel would be unsafe: a lock that another thread holds at that moment stays locked in the
child for ever. A process that never computes holds no such lock. Where fork does not exist or is unwise (macOS), every
rank is a fresh interpreter: slower, same behaviour.

The launcher talks to the helper over one socket (b"run" with two descriptors a rank, then the names of modules;
b"end", answered by exit codes), and to every rank over a socket of its own. When one side of a socket is gone, the
other leaves: nothing outlives the notebook.
"""

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .modules import Modules
from .rank import be_rank

PRELOADED = (  # costs a rank seconds to import
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "cloudpickle",
)
RUN, END = b"run", b"end"  # the launcher's messages, of equal length
SIZE = 4  # bytes of the length of the names that follow the first


def serve(descriptor: int, fork: bool, launcher: int) -> NoReturn:
    """Fork ranks and reap them, for as long as the process `launcher` lives."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored (a launcher may), it would hide how ranks ended
    if fork:
        for name in PRELOADED:
            importlib.import_module(name)
        _share()
    channel, modules = socket.socket(fileno=descriptor), Modules()
    ranks: list[_Started] = []
    while True:
        message, descriptors = _next_message(channel, launcher)
        codes, ranks = _end(ranks), []  # there are some, too, when Ctrl-C cut the last run off before its end
        if message == RUN:
            pairs = list(zip(descriptors[::2], descriptors[1::2], strict=True))
            held = [channel.fileno(), *descriptors]
            names = _names(channel)
            if fork and modules.keep_up(names):
                _share()
            ranks = [_start_rank(rank, *pair, fork, held) for rank, pair in enumerate(pairs)]
            for each in descriptors:
                os.close(each)
        elif message == END:
            with suppress(OSError):  # a second Ctrl-C, and nobody wants to know
                channel.sendall(pickle.dumps(codes))
        else:  # the launcher is gone
            os._exit(0)


def _share() -> None:
    """Let ranks share the pages of all objects there are, as long as nobody writes to them."""
    gc.collect()
    gc.freeze()


def _names(channel: socket.socket) -> list[str]:
    """Those of the modules that the launcher has imported."""
    size = int.from_bytes(channel.recv(SIZE, socket.MSG_WAITALL), "big")
    return channel.recv(size, socket.MSG_WAITALL).decode().split()


def _next_message(channel: socket.socket, launcher: int) -> tuple[bytes, list[int]]:
    """The launcher's next message with its descriptors, or b"" when there will be none.

    A child that the launcher forked may hold the other end, so look for the launcher itself, too.
    """
    while not select.select([channel], [], [], 1.0)[0]:
        if os.getppid() != launcher:
            return b"", []
    message, descriptors, _, _ = socket.recv_fds(channel, len(RUN), 250)
    return message, descriptors


class _Started(NamedTuple):
    pid: int


def _start_rank(rank: int, talk: int, output: int, fork: bool, inherited: list[int]) -> _Started:
    """Start one rank, leader of a process group; `inherited` are the descriptors a forked one must let go of."""
    if not fork:
        return _Started(start_python(f"rank.be_rank({rank}, {talk}, {output})", [talk, output]).pid)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        for each in inherited:
            if each not in (talk, output):
                os.close(each)
        be_rank(rank, talk, output)
    return _Started(pid)


def _end(ranks: list[_Started]) -> list[int]:
    """Kill what still runs and return the exit codes, negative for a signal.

    What the ranks started themselves is asked to leave: multiprocessing's resource tracker ignores that, and tidies up.
    """
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)  # not waited for yet, so this number is still ours
        with suppress(OSError):  # it never came to lead a group
            os.killpg(rank.pid, signal.SIGTERM)
    return [os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1]) for rank in ranks]


def start_python(expression: str, descriptors: list[int]) -> "subprocess.Popen[bytes]":
    """Evaluate an expression over this package in a fresh interpreter that inherits the descriptors.

    It gets a session of its own, so that Ctrl-C reaches the notebook only, which then ends the ranks in order.
    """
    boot = f"import sys; sys.path[:] = {sys.path!r}; from shardlab.ranks.launch import helper, rank; {expression}"
    return subprocess.Popen(
        [sys.executable, "-c", boot], pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
    )
