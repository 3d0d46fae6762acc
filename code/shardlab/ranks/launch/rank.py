"""One rank: it does its job, answers the launcher's questions meanwhile, and stays until the launcher hangs up."""

import ctypes
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from . import state, travel

ON_LINUX = sys.platform == "linux"
MAX_CALLS = 4096  # collectives that a rank remembers for the report
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class Job(NamedTuple):
    """Everything a rank needs to begin: the pickled call, and the surroundings it was made in."""

    call: bytes  # cloudpickle of (fn, args)
    world_size: int
    timeout: float  # s
    threads: int
    store: str  # path of the file at which the ranks meet
    environment: dict[str, str]
    path: list[str]
    folder: str


def loopback() -> str:
    """The interface that only this machine sees; left alone, gloo listens on whatever the host name resolves to."""
    return "lo0" if sys.platform == "darwin" else "lo"


def be_rank(rank: int, talk: int, output: int) -> NoReturn:
    """Do one job and report; then stay, so that no peer loses its connection, until the launcher hangs up."""
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    sys.stdout, sys.stderr = (
        os.fdopen(n, "w", 1, encoding="utf-8", errors="replace", closefd=False) for n in (1, 2)
    )
    me = _Rank(talk)
    try:
        job = Job(*me.channel.recv())
        threading.Thread(target=me.listen, daemon=True).start()
        result = me.work(rank, job)
        me.finished = True  # before it says so: whoever hears it may ask at once
        me.post("done", state.calls(with_places=False), result)
    except BaseException as error:
        me.finished = True
        me.post("failed", state.chain(error))
    threading.Event().wait()
    os._exit(0)


class _Rank:
    """A rank's side of the conversation."""

    def __init__(self, talk: int) -> None:
        self.channel, self.lock, self.finished = Connection(talk), threading.Lock(), False
        os.set_inheritable(talk, False)  # a process that the rank starts must not keep the conversation open
        os.register_at_fork(after_in_child=self.channel.close)

    def post(self, kind: str, content: Any, attachment: bytes | None = None) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # the function may have closed or replaced it
                stream.flush()
        with self.lock:
            self.channel.send((kind, content))
            if attachment is not None:
                self.channel.send_bytes(attachment)

    def listen(self) -> None:
        """Answer the launcher's questions while the main thread computes; leave when the launcher does."""
        while True:
            try:
                question = self.channel.recv()
                answer = state.signs if question == "signs" else state.where
                self.post(question, answer(self.finished))
            except (EOFError, OSError):
                os._exit(1)

    def work(self, rank: int, job: Job) -> bytes:
        """Meet the other ranks, call the function, and return its pickled result."""
        os.environ.clear()
        os.environ.update(job.environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world_size))
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(MAX_CALLS))
        os.chdir(job.folder)
        sys.path[:] = job.path
        import torch
        import torch.distributed as dist

        torch.set_num_threads(job.threads)
        travel.draw_own_numbers()
        dist.set_debug_level_from_env()
        store, patience = dist.FileStore(job.store, job.world_size), timedelta(seconds=job.timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world_size, timeout=patience)
        fn, args = pickle.loads(job.call)
        if getattr(fn, "__module__", "") == "__main__":  # pickle looks there for the classes of a notebook's cells
            vars(sys.modules["__main__"]).update(getattr(fn, "__globals__", {}))
        self.post("at work", None)
        return travel.packed_result(fn(dist.group.WORLD, *args))
