"""One rank: it does its job, answers the launcher's questions meanwhile, and stays until the launcher hangs up."""

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

ON_LINUX = sys.platform == "linux"
MAX_CALLS = 4096  # collectives that a rank remembers for the report
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
Place = tuple[str, int, str]  # file, line, function


class Job(NamedTuple):
    """Everything a rank needs to begin: the pickled call, and the surroundings it was made in."""

    call: bytes  # cloudpickle of (fn, args)
    world_size: int
    threads: int
    store: str  # path of the file at which the ranks meet
    environment: dict[str, str]
    path: list[str]
    folder: str


class Failure(NamedTuple):
    """One exception of a chain, first cause first."""

    places: list[Place]
    text: str


class Whereabouts(NamedTuple):
    """What a rank is doing: the line it has come to, and the collectives it has called so far."""

    finished: bool
    places: list[Place]
    calls: list["Call"]


class Call(NamedTuple):
    """One collective as torch's flight recorder saw it."""

    group: str
    number: int  # counts the group's collectives from 1
    op: str
    shapes: str
    place: Place | None


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
    sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, errors="replace", closefd=False) for n in (1, 2))
    me = _Rank(Connection(talk))
    try:
        job = Job(*me.channel.recv())
        threading.Thread(target=me.listen, daemon=True).start()
        me.post("done", me.work(rank, job))
    except BaseException as error:
        me.post("failed", _chain(error))
    me.finished = True
    threading.Event().wait()
    os._exit(0)


class _Rank:
    """A rank's side of the conversation."""

    def __init__(self, channel: Connection) -> None:
        self.channel, self.lock, self.finished = channel, threading.Lock(), False

    def post(self, kind: str, content: Any) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        with self.lock:
            self.channel.send((kind, content))

    def listen(self) -> None:
        """Answer the launcher's questions while the main thread computes; leave when the launcher does."""
        while True:
            try:
                question = self.channel.recv()
                self.post(question, self.stirs() if question == "stirs" else self.where())
            except (EOFError, OSError):
                os._exit(1)

    def stirs(self) -> float | None:
        """Seconds of processor time used so far, or None when some thread is doing more than waiting to be woken."""
        return time.process_time() if self.finished or _all_threads_wait() else None

    def where(self) -> Whereabouts:
        return Whereabouts(self.finished, places(_main_frame()), calls())

    def work(self, rank: int, job: Job) -> tuple[bytes, list[Call]]:
        os.environ.clear()
        os.environ.update(job.environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job.world_size))
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(MAX_CALLS))
        os.chdir(job.folder)
        sys.path[:] = job.path
        import cloudpickle
        import torch
        import torch.distributed as dist

        torch.set_num_threads(job.threads)
        _draw_own_numbers()
        dist.set_debug_level_from_env()
        store = dist.FileStore(job.store, job.world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world_size)
        fn, args = pickle.loads(job.call)
        result = fn(dist.group.WORLD, *args)
        try:
            return cloudpickle.dumps(result), calls(with_places=False)
        except Exception as error:
            raise TypeError(
                f"the function returned a {type(result).__name__}, which cannot be sent back to you ({error}); "
                "return tensors, numbers, strings, or lists and dicts of these"
            ) from None


def _draw_own_numbers() -> None:
    """Seed anew: a forked rank has its siblings' random state, and what should differ between ranks would not."""
    import random

    import numpy
    import torch

    torch.seed()
    numpy.random.seed()  # noqa: NPY002 (the state that readers' code may use)
    random.seed()


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def places(frame: FrameType | None) -> list[Place]:
    """The stack, outermost first: the reader's own lines, not those of the launcher, comm, the ledger or torch."""
    return _theirs([(f.filename, f.lineno or 0, f.name) for f in traceback.extract_stack(frame)] if frame else [])


def _theirs(stack: list[Place]) -> list[Place]:
    ours = Path(__file__).parent
    tools = (str(ours.with_name(name)) for name in ("comm.py", "ledger.py"))
    hidden = (str(ours), *tools, "<string>", "<frozen ")
    stack = [place for place in stack if not place[0].startswith(hidden)]
    inside_torch = f"{os.sep}torch{os.sep}"
    return [place for place in stack if inside_torch not in place[0]] or stack


def _chain(error: BaseException) -> list[Failure]:
    """The exception and what caused it, first cause first."""
    chain: list[Failure] = []
    seen: BaseException | None = error
    while seen is not None:
        stack = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(seen.__traceback__)]
        chain.insert(0, Failure(_theirs(stack), "".join(traceback.format_exception_only(seen)).rstrip()))
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return chain


def calls(with_places: bool = True) -> list[Call]:
    """The collectives this rank has called, oldest first, as torch's flight recorder keeps them (gloo and NCCL)."""
    from torch._C import _distributed_c10d

    dump: Callable[..., bytes] | None = getattr(_distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return []
    entries = pickle.loads(dump(includeStackTraces=with_places)).get("entries", [])
    return [_call(entry) for entry in entries if not entry["is_p2p"]]


def _call(entry: dict[str, Any]) -> Call:
    inputs = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in inputs)
    frames = [(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
    theirs = _theirs(frames)  # innermost first
    op = entry["profiling_name"].split(":")[-1]
    return Call(entry["process_group"][0], entry["collective_seq_id"], op, shapes, theirs[0] if theirs else None)


def _all_threads_wait() -> bool:
    """Whether every thread of this process sleeps until another wakes it; False where that cannot be seen."""
    for thread in os.listdir("/proc/self/task") if ON_LINUX else ["unknown"]:
        if int(thread) == threading.get_native_id():
            continue
        try:
            with open(f"/proc/self/task/{thread}/wchan") as file:
                if not file.read().startswith(("futex", "do_epoll_wait", "ep_poll")):
                    return False
        except OSError:
            return False
    return True
