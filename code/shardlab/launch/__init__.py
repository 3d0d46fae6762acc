"""Run one function on many ranks: from a notebook, a script or a test, under torchrun or mpiexec.

    def hello(group, name):
        return f"{name} {group.rank()} of {group.size()}"

    run(hello, "rank", world_size=4)      # four gloo ranks on this machine

The same line in a script started by `torchrun --nproc-per-node 4` or `mpiexec -n 4` runs on the
ranks that were started.

A user needs the names in `__all__` alone. Each of the other files is named for what it does in a
run; a leading underscore marks a name that only its own file uses. To read on, begin with `run`
below, then in this order:

    the launcher   job (what ranks are asked), local (its ends of the processes), watch (one run),
                   report (what went wrong), progress (a line meanwhile), surroundings (folders)
    the helper     helper (forks ranks), modules (imports what they will use)
    a rank         rank (one job), travel (its call and result), meeting (finds its peers),
                   contracts (compares calls), peers (knows whom an error lost),
                   state (what it reports), waiting (whether it may go on by itself)
    one process    threads (all ranks of a run), thread_backend (what they send each other)
    elsewhere      join (the ranks of torchrun and mpiexec), ending (how they end)
"""

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from . import surroundings, travel
from .job import Job
from .join import already_a_rank, join, refuse_a_task_of_several
from .local import Helper
from .report import Outcome, interruption, report
from .watch import Watch

__all__ = ["MAX_LOCAL_RANKS", "PATIENCE", "RankError", "already_a_rank", "run", "warm"]

MAX_LOCAL_RANKS = {"processes": 64, "threads": 1024}  # by what a rank is
MAX_THREADS = 1024  # of a rank; more than machines have, and few enough to be started
MAX_TIMEOUT = 10**7  # s, four months; torch counts nanoseconds
# seconds that a run cut short by Ctrl-C waits for its helper, which may still be importing torch
PATIENCE = 1.0
OF_ALL = "The process of all ranks, which is called rank 0 here, has failed as a whole.\n"
_lock = threading.RLock()  # a process does one run at a time
_runs = 0  # under way in the thread that holds the lock


class RankError(RuntimeError):
    """The failure of a rank; the message is the report, and a notebook shows nothing else."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return ["RankError: " + str(self)]


class Interrupted(KeyboardInterrupt):
    """The end of a run by Ctrl-C; the message, all a notebook shows, says where each rank was."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return ["KeyboardInterrupt: " + str(self)]


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 300.0,
    threads: int = 1,
    ordered: bool = False,
    ranks: Literal["processes", "threads"] = "processes",
) -> list[Any]:
    """Call fn(group, *args) on `world_size` ranks and return what each returned, in rank order.

    Ranks get copies of fn, of args, and of the variables of your notebook or script that fn uses;
    tensors arrive on the rank's device, comm.device(group), where new tensors are made, too. The
    tensors of results come back to the CPU. What ranks print appears labelled by rank.

    timeout   seconds until the run is stopped; a deadlock is noticed and reported long before
    threads   processor threads that each rank may use
    ordered   show what ranks print at the end, rank after rank, and not as it comes
    ranks     "threads" makes all ranks threads of one process, of which one runs at a time: up to
              1,024 ranks, each run with the same seeds the same, and a deadlock is seen at once.
              What a method computes and which messages it sends is as with processes. Not to be
              seen are time, bytes on a socket, and buffers touched while a message is in flight.
              Variables of imported modules are shared. DDP, FSDP and DTensor are refused.

    Under torchrun or mpiexec, fn runs on the first `world_size` of the ranks that were started,
    with NCCL and a GPU for each where the machine has GPUs, and every rank returns all results.
    The starter then sets the threads, shows what is printed, and handles failures. In one of
    several tasks of Slurm or Flux that are no ranks, a run is refused.

    Errors: RankError, with the traceback of the first rank that failed and what the others did;
    after Ctrl-C Interrupted, which is a KeyboardInterrupt.
    """
    world_size, threads = _count("world_size", world_size), _count("threads", threads)
    if not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise ValueError(f"timeout={timeout!r} must be seconds, above 0 and at most {MAX_TIMEOUT}")
    most = _most(ranks)
    hosted = world_size if ranks == "threads" else 0
    if already_a_rank():
        if hosted:
            raise ValueError('ranks="threads" starts all ranks in one process; this is a rank')
        return join(fn, args, world_size, timeout)
    refuse_a_task_of_several()
    if world_size > most:
        raise ValueError(
            f"world_size={world_size}: at most {most} ranks that are {ranks} share this machine; "
            "start more with torchrun on several machines, or use "
            f'ranks="threads", up to {MAX_LOCAL_RANKS["threads"]}'
        )
    call = travel.packed_call(fn, args)
    with _lock, _alone(), surroundings.temporary() as folder:
        store = os.path.join(folder, "store")
        job = Job(
            call=call,
            world_size=1 if hosted else world_size,
            hosted=hosted,
            timeout=timeout,
            threads=threads,
            store=store,
        )
        helper, watch = Helper.running(), Watch(ordered)
        try:  # results, failure or Ctrl-C: no rank outlives this block
            helper.start(watch.add_ranks(job))
            watch.see_through(job)
        except KeyboardInterrupt:
            raise Interrupted(_last_words(watch, helper)) from None
        except BaseException:
            helper.end(PATIENCE)
            raise
        else:
            codes = helper.end()
        finally:
            watch.close()
    return _results(watch, codes, hosted > 0)


def _results(watch: Watch, codes: list[int | None] | str, hosted: bool) -> list[Any]:
    """Return what each rank returned. Errors: RankError where the run has failed."""
    outcome = watch.outcome(codes)
    if outcome is not None:
        raise RankError(f"{OF_ALL if hosted else ''}{report(outcome)}")
    results = [rank.result or b"" for rank in watch.ranks]
    if hosted:
        results = _read(0, *results)
        if isinstance(results, Outcome):
            raise RankError(report(results))
    return [_read(rank, result) for rank, result in enumerate(results)]


def _count(name: str, given: Any) -> int:
    """Return an option of `run` that is a whole number; one of numpy will do."""
    if not hasattr(given, "__index__") or given < 1:
        raise ValueError(f"{name}={given!r} must be a whole number, at least 1")
    if name == "threads" and given > MAX_THREADS:
        raise ValueError(f"threads={given}: a rank may use at most {MAX_THREADS}")
    return int(given)


def _most(ranks: str) -> int:
    """Return how many ranks of a kind share this machine."""
    if ranks not in MAX_LOCAL_RANKS:
        raise ValueError(f"ranks={ranks!r} must be one of {', '.join(map(repr, MAX_LOCAL_RANKS))}")
    return MAX_LOCAL_RANKS[ranks]


def _read(rank: int, result: bytes) -> Any:
    """Read what a rank has returned."""
    try:
        return pickle.loads(result)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what an object does when it is read, such as exit, is its own
        raise RankError(
            f"what rank {rank} returned cannot be read here: {type(error).__name__}: {error}. "
            "Return tensors, numbers, texts, and lists or dictionaries of them"
        ) from error


def warm() -> None:
    """Start the helper process in the background, so that the first `run` starts faster."""
    if not already_a_rank():
        with _lock:
            Helper.running()


@contextmanager
def _alone() -> Iterator[None]:
    """Refuse a run within a run of the same thread, as a signal's handler may start one."""
    global _runs
    if _runs:
        raise RuntimeError(
            "this process is in a run already; start another one when it is over, "
            "and not in the handler of a signal"
        )
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def _last_words(watch: Watch, helper: Helper) -> str:
    """Ask where each rank is, and end them all, even if a second Ctrl-C interrupts the question."""
    try:
        watch.ask_where(PATIENCE)
    finally:
        helper.end(PATIENCE)
    return interruption(watch.where())


def _renew_lock() -> None:
    """Replace the lock in a forked child: the thread that held it exists only in the parent."""
    global _lock, _runs
    _lock, _runs = threading.RLock(), 0


os.register_at_fork(after_in_child=_renew_lock)
