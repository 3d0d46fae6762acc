"""Ranks that are threads of one process, for methods on hundreds of ranks.

One rank runs at a time, and hands over where it waits for others: so a run with the same seeds is
the same every time, and a deadlock is seen at once. Each rank has copies of the function and of its
arguments, random numbers and a default dtype of its own; gradients and dispatch modes are a
thread's own anyway. Variables of imported modules are shared by all.
"""

import io
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.random
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from . import contracts, peers, state, travel
from .job import GRACE, Job, label
from .report import Outcome
from .thread_backend import Backend, Operation, Ranks, here

_NUMPY: Any = numpy.random  # whose stubs leave out the generator that all share
_C10D: Any = torch._C._distributed_c10d
STACK = 16 * 2**20  # bytes of a rank's stack, which is that of a process's main thread elsewhere
DEADLOCK = "Deadlock: every rank that has not finished waits for another one."
Calls = dict[tuple[str, int], dict[int, str]]  # by name and number, what each rank has called


class ProcessState:
    """What belongs to a process, and is kept for each rank while another one runs."""

    def __init__(self) -> None:
        self.dtype = torch.get_default_dtype()
        self.of_torch = torch.default_generator.get_state()
        self.of_numpy = _NUMPY.get_bit_generator()
        self.of_python = random.getstate()

    def restore(self) -> None:
        """Put it back."""
        torch.set_default_dtype(self.dtype)
        torch.default_generator.set_state(self.of_torch)
        _NUMPY.set_bit_generator(self.of_numpy)
        random.setstate(self.of_python)


class ThreadRank(threading.Thread):
    """One rank: its turn, what it waits for, and how it ended."""

    def __init__(self, number: int, run: "ThreadRun") -> None:
        super().__init__(name=f"rank {number}", daemon=True)
        self.number, self.of = number, run
        self.turn = threading.Lock()  # held while other ranks run
        self.turn.acquire()
        self.awaited: Ranks = ()  # the ranks of the operation that it waits for
        self.contracts = SharedContracts(run.calls, self.tell)
        self.failure: state.Failure | None = None
        self.result = b""
        self.settled = False  # whether the function has ended

    def run(self) -> None:
        """Call the function, and keep what it returns or raises."""
        self.turn.acquire()
        here.rank = self
        self._known()
        try:
            _C10D._set_thread_isolation_mode(True)
            _NUMPY.set_bit_generator(numpy.random.MT19937())
            travel.draw_own_numbers()
            size = self.of.job.hosted
            dist.init_process_group("fake", store=FakeStore(), rank=self.number, world_size=size)
            fn, args = travel.unpacked_call(self.of.job.call)
            self.result = travel.packed_result(fn(dist.group.WORLD, *args))
        except BaseException as error:
            self.failure = state.failure(error).after(self.failure)
            self.of.end_soon()
        self.settled = True
        self.of.hand_over()

    def tell(self, refusal: str) -> None:
        """Note a call that is refused, whatever the function does about it."""
        places = state.places(sys._getframe())
        self.failure = state.Failure([state.Raised(places, f"ValueError: {refusal}")], set(), False)
        self.of.end_soon()

    def wait(self, operation: Operation, awaited: Ranks) -> None:
        """Let others run until an operation is complete."""
        if operation.complete:
            return
        self.awaited = awaited
        operation.then.append(lambda: self.of.ready.append(self))
        kept = ProcessState()
        self.of.hand_over()
        self.turn.acquire()
        kept.restore()
        self.awaited = ()
        self._known()

    def _known(self) -> None:
        """Let the environment name this rank."""
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(self.number)

    def where(self) -> state.Whereabouts:
        """Report where this rank is."""
        frame = sys._current_frames().get(self.ident or 0)
        places = [] if self.settled else state.places(frame)
        return state.Whereabouts(self.settled, places, [], list(self.awaited), "")


class SharedContracts(contracts.Contracts):
    """The calls of a rank beside those of the others, in a table of this process.

    The first to disagree with the call that came first refuses; a call goes when all have made it.
    """

    def __init__(self, table: Calls, tell: contracts.Tell) -> None:
        super().__init__("", tell)
        self.table = table

    def _exchange(self, name: str, ranks: Ranks, row: int, call: str) -> dict[int, str]:
        number = name, self.counts[name]
        found = self.table.setdefault(number, {})
        found[ranks[row]] = call
        if len(found) == len(ranks):
            del self.table[number]
        first = next(iter(found.values())).partition("\n")[0]
        return {} if first == call.partition("\n")[0] else found


class ThreadRun:
    """One run of as many ranks as the job asks for."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calls: Calls = {}
        self.ranks = [ThreadRank(number, self) for number in range(job.hosted)]
        self.ready = deque(self.ranks)
        self.over = threading.Event()

    def end_soon(self) -> None:
        """Give the others a moment to fail as well."""
        timer = threading.Timer(GRACE, self.over.set)
        timer.daemon = True
        timer.start()

    def hand_over(self) -> None:
        """Let the rank run that has been ready for longest; end the run where none is."""
        if self.ready:
            self.ready.popleft().turn.release()
        else:
            self.over.set()

    def see_through(self) -> list[bytes] | Outcome:
        """Return what the ranks returned, pickled, or how the run failed."""
        threading.stack_size(STACK)
        for rank in self.ranks:
            rank.start()
        self.hand_over()
        in_time = self.over.wait(self.job.timeout)
        failed = {rank.number: rank.failure for rank in self.ranks if rank.failure}
        if not failed and all(rank.settled for rank in self.ranks):
            return [rank.result for rank in self.ranks]
        late = f"No result after {self.job.timeout:g} s."
        verdict = "" if failed else DEADLOCK if in_time else late
        return Outcome(failed=failed, where=self.where(), verdict=verdict)

    def where(self) -> dict[int, state.Whereabouts]:
        """Report where each rank is."""
        return {rank.number: rank.where() for rank in self.ranks}


class LabelledOutput(io.TextIOBase):
    """Standard output or error of all ranks, which puts its rank before each line."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.begun: dict[int, str] = {}  # by rank, a line whose end is still to come

    def write(self, text: str) -> int:
        """Show the lines that are complete; what is no rank's is shown as it is."""
        rank = getattr(here, "rank", None)
        if rank is None:
            return int(self.stream.write(text))
        *lines, begun = (self.begun.get(rank.number, "") + text).split("\n")
        self.begun[rank.number] = begun
        self.stream.write("".join(f"{label(rank.number)}{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Hand on what is complete."""
        self.stream.flush()

    def finish(self) -> None:
        """Show the lines that have no end."""
        for number, text in sorted(self.begun.items()):
            self.stream.write(f"{label(number)}{text}\n" if text else "")
        self.flush()


def run(job: Job, compare: bool, publish: Callable[[ThreadRun], None]) -> list[bytes] | Outcome:
    """Do a job on ranks that are threads of this process.

    compare: whether ranks must make the same calls. publish: gets the run once it has begun.
    """
    setattr(dist.distributed_c10d, "_world", ThreadLocalWorld())  # noqa: B010 (to mypy an error)
    this = ThreadRun(job)
    peers.install(contracts.by_method(lambda: here.rank.contracts) if compare else {})
    Backend(lambda *args: here.rank.wait(*args)).install()
    outputs = sys.stdout, sys.stderr = [
        LabelledOutput(stream) for stream in (sys.stdout, sys.stderr)
    ]
    publish(this)
    try:
        return this.see_through()
    finally:
        for each in outputs:
            each.finish()
