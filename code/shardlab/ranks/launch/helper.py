"""The helper process: it imports torch once, stays idle and single-threaded, and forks ranks on demand.

Forking the notebook's own kernel would be unsafe: a lock that another thread holds at that moment stays locked in the
child for ever. A process that never computes holds no such lock. Where fork does not exist or is unwise (macOS), every
rank is a fresh interpreter: slower, same behaviour.

The launcher talks to the helper over one socket (b"run" with two descriptors a rank; b"end", answered by exit codes),
and to every rank over a socket of its own. When one side of a socket is gone, the other leaves: nothing outlives the
notebook.
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
from typing import Any, NamedTuple, NoReturn

from .rank import be_rank

PRELOADED = (  # costs a rank seconds to import; shardlab itself is not here, so that an edited module is read anew
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "cloudpickle",
)


def serve(descriptor: int, fork: bool) -> NoReturn:
    """Fork ranks and reap them, for as long as the launcher lives."""
    if fork:
        for name in PRELOADED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # ranks share these objects' pages as long as nobody writes to them
    channel, parent = socket.socket(fileno=descriptor), os.getppid()
    ranks: list[_Forked | subprocess.Popen[bytes]] = []
    while True:
        while not select.select([channel], [], [], 1.0)[0]:
            if os.getppid() != parent:
                _end(ranks)
                os._exit(0)
        message, descriptors, _, _ = socket.recv_fds(channel, 16, 250)
        if message == b"run":
            pairs = list(zip(descriptors[::2], descriptors[1::2], strict=True))
            held = [channel.fileno(), *descriptors]
            ranks = [_start_rank(rank, *pair, fork, held) for rank, pair in enumerate(pairs)]
            for each in descriptors:
                os.close(each)
            continue
        codes, ranks = _end(ranks), []
        if not message:  # the launcher is gone
            os._exit(0)
        channel.sendall(pickle.dumps(codes))


class _Forked(NamedTuple):
    pid: int


def _start_rank(
    rank: int, talk: int, output: int, fork: bool, inherited: list[int]
) -> "_Forked | subprocess.Popen[bytes]":
    """Start one rank; `inherited` are the descriptors that a forked rank must let go of."""
    if not fork:
        return start_python(f"rank.be_rank({rank}, {talk}, {output})", [talk, output])
    pid = os.fork()
    if pid == 0:
        for each in inherited:
            if each not in (talk, output):
                os.close(each)
        be_rank(rank, talk, output)
    return _Forked(pid)


def _end(ranks: list[Any]) -> list[int]:
    """Kill what still runs and return the exit codes, negative for a signal."""
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)  # not waited for yet, so this number is still ours
    return [os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1]) for rank in ranks]


def start_python(expression: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Evaluate an expression over this module in a fresh interpreter that inherits the descriptors.

    It gets a session of its own, so that Ctrl-C reaches the notebook only, which then ends the ranks in order.
    """
    boot = f"import sys; sys.path[:] = {sys.path!r}; from shardlab.ranks.launch import helper, rank; {expression}"
    return subprocess.Popen(
        [sys.executable, "-c", boot], pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
    )
