"""The helper process: import torch once, stay idle and single-threaded, and fork ranks on demand.

Forking the notebook's own kernel would be unsafe: a lock that another thread holds at that moment
stays locked in the child forever. A process that never computes holds no such lock. Where fork does
not exist or is unwise (macOS), every rank is a fresh interpreter, which is slower.

The launcher has one socket to the helper and one to each rank. It sends the helper b"run" with two
descriptors per rank, then the names of modules; or b"end", which the helper answers with exit
codes. When one side of a socket is gone, the other exits, so that nothing outlives the notebook.
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

PRELOADED = (  # modules that a rank would need seconds to import
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "safetensors",
    "cloudpickle",
    "shardlab.ranks.launch.contracts",
    "shardlab.ranks.launch.meeting",
)
OF_RANKS = ("TORCH_DISTRIBUTED_DEBUG",)  # environment that a rank reads, and may find wrong
RUN, END = b"run", b"end"  # the launcher's messages, of equal length
SIZE = 4  # bytes that hold the length of the names after b"run"


def serve(descriptor: int, fork: bool, launcher: int) -> NoReturn:
    """Fork ranks and reap them, for as long as the process `launcher` lives."""
    # A launcher may ignore SIGCHLD, and its children inherit that; it would hide how ranks ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if fork:
        for name in PRELOADED:
            importlib.import_module(name)
        _share()
    channel = socket.socket(fileno=descriptor)
    modules = Modules()
    ranks: list[_Started] = []
    problem = ""
    while True:
        message, descriptors = _next_message(channel, launcher)
        codes = _end(ranks)  # also before b"run": Ctrl-C may have kept the last b"end" away
        ranks = []
        if message == RUN:
            pairs = list(zip(descriptors[::2], descriptors[1::2], strict=True))
            held = [channel.fileno(), *descriptors]
            names = _receive_names(channel)
            if fork and modules.keep_up(names):
                _share()
            problem = ""
            try:
                for rank, pair in enumerate(pairs):
                    ranks.append(_start_rank(rank, *pair, fork, held))
            except OSError as error:
                problem = f"only {len(ranks)} of {len(pairs)} ranks could be started: {error}"
            for each in descriptors:
                os.close(each)
        elif message == END:
            with suppress(OSError):  # after a second Ctrl-C nobody listens
                channel.sendall(pickle.dumps(problem or codes))
        else:  # the launcher is gone
            os._exit(0)


def _share() -> None:
    """Keep the garbage collector off all present objects, so that ranks share their pages."""
    gc.collect()
    gc.freeze()


def _receive_names(channel: socket.socket) -> list[str]:
    """Receive the names of the modules that the launcher has imported."""
    size = int.from_bytes(channel.recv(SIZE, socket.MSG_WAITALL), "big")
    return channel.recv(size, socket.MSG_WAITALL).decode().split()


def _next_message(channel: socket.socket, launcher: int) -> tuple[bytes, list[int]]:
    """Receive the launcher's next message and its descriptors; b"" when the launcher is gone.

    A child that the launcher forked may keep the other end open, so check the launcher itself, too.
    """
    while not select.select([channel], [], [], 1.0)[0]:
        if os.getppid() != launcher:
            return b"", []
    message, descriptors, _, _ = socket.recv_fds(channel, len(RUN), 250)
    return message, descriptors


class _Started(NamedTuple):
    pid: int


def _start_rank(
    rank: int, channel: int, output: int, fork: bool, inherited: list[int]
) -> _Started:
    """Start one rank as leader of a process group of its own.

    inherited: descriptors that a forked rank must close, except its own two.
    """
    if not fork:
        expression = f"rank.be_rank({rank}, {channel}, {output})"
        return _Started(start_python(expression, [channel, output]).pid)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        for each in inherited:
            if each not in (channel, output):
                os.close(each)
        be_rank(rank, channel, output)
    return _Started(pid)


def _end(ranks: list[_Started]) -> list[int]:
    """Kill the ranks and return their exit codes, negative for a signal.

    Processes that the ranks started get SIGTERM, which multiprocessing's resource tracker ignores:
    it ends by itself after it has tidied up.
    """
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)  # not waited for yet, so its number is not reused
        with suppress(OSError):  # it had not yet become the leader of a group
            os.killpg(rank.pid, signal.SIGTERM)
    return [os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1]) for rank in ranks]


def start_python(expression: str, descriptors: list[int]) -> "subprocess.Popen[bytes]":
    """Evaluate an expression of this package in a fresh interpreter that has the descriptors.

    The interpreter gets a session of its own, so that Ctrl-C reaches only the notebook, which then
    ends the ranks in order.
    """
    path = f"import sys; sys.path[:] = {sys.path!r}"
    package = "from shardlab.ranks.launch import helper, rank"
    return subprocess.Popen(
        [sys.executable, "-c", f"{path}; {package}; {expression}"],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in OF_RANKS},
    )
