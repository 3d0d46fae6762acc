"""A rank: do one job, answer the launcher meanwhile, and stay until the launcher hangs up."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from . import state, travel, waiting
from .job import Job
from .state import Message

ON_LINUX = sys.platform == "linux"
MAX_CALLS = 4096  # collectives that a rank remembers for the report
MAX_FOLDER = 70  # bytes of a name that leave room in the 107 of a socket in the folder
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
# s by which torch waits longer than the run: if torch gave up first, ranks that only waited would
# raise errors, and the report would blame them
SPARE = 60.0


def be_rank(rank: int, channel: int, output: int) -> NoReturn:
    """Do one job and report; then stay until the launcher hangs up, so that no peer loses us.

    channel: descriptor of the socket to the launcher. output: descriptor for all that is printed.
    """
    if ON_LINUX:
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    _print_to(output)
    me, process = _Rank(rank, channel), os.getpid()
    try:
        job: Job = me.channel.recv()
        threading.Thread(target=me.listen, daemon=True).start()
        result = me.work(job)
        _leave_child(process)
        me.finished = True  # before the message: the launcher may ask as soon as it has it
        me.post(Message.DONE, state.calls(with_places=False), result)
    except BaseException as error:
        _leave_child(process, error)
        me.raised = type(error).__name__
        failure = state.failure(error)  # asks for its text, which may take for ever
        me.finished = True
        me.post(Message.FAILED, failure)
    threading.Event().wait()
    os._exit(0)


def _leave_child(rank: int, error: BaseException | None = None) -> None:
    """End a process that the function has forked and that left the function as the rank will."""
    if os.getpid() != rank:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error, limit=-1)
        os._exit(error is not None)


def _no_keyboard(*_: Any, **__: Any) -> NoReturn:
    """Refuse `breakpoint()`."""
    raise RuntimeError(
        "breakpoint() needs a keyboard, which a rank does not have; print instead, or start one "
        "rank with RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 python -m pdb your_script.py"
    )


def _print_to(output: int) -> None:
    """Let standard output and standard error, of Python and of C, go to the descriptor."""
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    sys.stdout, sys.stderr = (
        os.fdopen(n, "w", 1, encoding="utf-8", errors="replace", closefd=False) for n in (1, 2)
    )


class _Rank:
    """The rank's end of its channel to the launcher."""

    def __init__(self, number: int, channel: int) -> None:
        self.number = number
        self.channel = Connection(channel)
        self.lock = threading.Lock()
        self.finished = False
        self.raised = ""
        self.run: Any = None  # of the ranks that are threads of this process
        # A process that the rank starts must not keep the channel open.
        os.set_inheritable(channel, False)
        os.register_at_fork(after_in_child=self.channel.close)

    def post(self, message: Message, content: Any, attachment: bytes | None = None) -> None:
        """Send a message, after everything that was printed before it."""
        for stream in (sys.stdout, sys.stderr):
            # The function may have closed or replaced the stream.
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        with self.lock:
            self.channel.send((message, content))
            if attachment is not None:
                self.channel.send_bytes(attachment)

    def tell(self, refusal: str) -> None:
        """Tell the launcher of a call that is refused, whatever the function does about it."""
        with suppress(OSError):  # in a child that the function has forked
            raised = state.Raised(state.places(sys._getframe()), f"ValueError: {refusal}")
            self.post(Message.REFUSED, state.Failure([raised], set(), False))

    def listen(self) -> None:
        """Answer questions while the main thread computes; exit when the launcher hangs up."""
        while True:
            try:
                question = self.channel.recv()
                if question is Message.SIGNS:
                    self.post(question, state.signs(self.finished))
                elif self.run:
                    self.post(question, self.run.where())
                else:
                    self.post(question, {self.number: state.where(self.finished, self.raised)})
            except (EOFError, OSError):
                os._exit(1)

    def work(self, job: Job) -> bytes:
        """Meet the other ranks, call the function, and return its pickled result."""
        os.environ.clear()
        os.environ.update(job.environment, RANK=str(self.number), LOCAL_RANK=str(self.number))
        os.environ["WORLD_SIZE"] = str(job.world_size)
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(MAX_CALLS))
        os.chdir(job.folder)
        sys.path[:] = job.path
        waiting.run_began = time.monotonic()
        waiting.run_ends = waiting.run_began + job.timeout
        import torch
        import torch.distributed as dist

        from . import contracts, peers
        from .meeting import Store

        torch.set_num_threads(job.threads)
        travel.draw_own_numbers()
        sys.breakpointhook = _no_keyboard
        dist.set_debug_level_from_env()
        if job.hosted:
            return self.host(job)
        self.store = Store(job.store, job.world_size)  # torch keeps only the C++ half of it
        dist.init_process_group(
            "gloo",
            store=self.store,
            rank=self.number,
            world_size=job.world_size,
            timeout=timedelta(seconds=job.timeout + SPARE),
        )
        folder = os.path.dirname(job.store)
        if len(os.fsencode(folder)) <= MAX_FOLDER:  # here the launcher tidies up after workers
            this: Any = multiprocessing.current_process()
            this._config["tempdir"] = folder
        folder = os.environ.get(contracts.FOLDER, folder)
        peers.install(contracts.comparisons(folder, self.tell))
        fn, args = travel.unpacked_call(job.call)
        self.post(Message.AT_WORK, None)
        return travel.packed_result(fn(dist.group.WORLD, *args))

    def host(self, job: Job) -> bytes:
        """Be the process of all ranks; return the pickled results, or the outcome of the run."""
        from . import contracts, threads

        self.post(Message.AT_WORK, None)
        compare = os.environ.get(contracts.FOLDER) != ""
        outcome = threads.run(job, compare, lambda run: setattr(self, "run", run))
        return travel.packed_result(outcome)
