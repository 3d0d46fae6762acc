"""The helper process: it imports torch once, stays idle and single-threaded, and forks ranks on demand.

Forking the notebook's own kernel would be unsafe: a lock that another thread holds at that moment stays locked in the
child for ever. A process that never computes holds no such lock. Where fork does not exist or is unwise (macOS), every
rank is a fresh interpreter: slower, same behaviour.

The launcher talks to the helper over one socket (b"run" with two descriptors a rank; b"end", answered by exit codes),
and to every rank over a socket of its own. When one side of a socket is gone, the other leaves: nothing outlives the
notebook.
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
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

CAN_FORK = sys.platform == "linux"
PRELOADED = (  # costs a rank seconds to import; shardlab itself is not here, so that an edited module is read anew
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "cloudpickle",
)
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


# ---- the helper ------------------------------------------------------------------------------------------------------


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
        return start_python(f"helper.be_rank({rank}, {talk}, {output})", [talk, output])
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
    boot = f"import sys; sys.path[:] = {sys.path!r}; from shardlab.ranks.launch import helper; {expression}"
    return subprocess.Popen(
        [sys.executable, "-c", boot], pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
    )


# ---- one rank --------------------------------------------------------------------------------------------------------


def be_rank(rank: int, talk: int, output: int) -> NoReturn:
    """Do one job and report; then stay, so that no peer loses its connection, until the launcher hangs up."""
    if CAN_FORK:
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


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def places(frame: FrameType | None) -> list[Place]:
    """The stack, outermost first: the reader's own lines, not the launcher's, comm's or torch's."""
    return _theirs([(f.filename, f.lineno or 0, f.name) for f in traceback.extract_stack(frame)] if frame else [])


def _theirs(stack: list[Place]) -> list[Place]:
    ours = Path(__file__).parent
    hidden = (str(ours), str(ours.with_name("comm.py")), "<string>", "<frozen ")
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
    for thread in os.listdir("/proc/self/task") if CAN_FORK else ["unknown"]:
        if int(thread) == threading.get_native_id():
            continue
        try:
            with open(f"/proc/self/task/{thread}/wchan") as file:
                if not file.read().startswith(("futex", "do_epoll_wait", "ep_poll")):
                    return False
        except OSError:
            return False
    return True
