"""Run one function on many ranks: from a notebook, a script or a test, and unchanged under torchrun or mpiexec.

    def hello(group, name):
        return f"{name} {group.rank()} of {group.size()}"

    run(hello, "rank", world_size=4)      # four gloo ranks on this machine

The same line in a script started by `torchrun --nproc-per-node 4` or `mpiexec -n 4` joins the ranks already there.
"""

import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

from .join import already_a_rank, join
from .local import Helper
from .rank import Job, loopback
from .report import report
from .watch import Watch

__all__ = ["MAX_LOCAL_RANKS", "PATIENCE", "RankError", "already_a_rank", "run", "warm"]

MAX_LOCAL_RANKS = 64
PATIENCE = 1.0  # seconds that a run cut short by Ctrl-C waits for its helper, which may still be importing torch
_lock = threading.RLock()  # one run at a time in a process


class RankError(RuntimeError):
    """Some rank failed; the message is the report, and in a notebook it is all that is shown."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return ["RankError: " + str(self)]


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 300.0,
    threads: int = 1,
    ordered: bool = False,
) -> list[Any]:
    """Call fn(group, *args) on `world_size` ranks and return what each returned, in rank order.

    fn, args, and the variables of your notebook or script that fn uses go to the ranks as copies; what fn returns comes
    back, tensors on the CPU. On a rank all of these, and every new tensor, are on its device: comm.device(group).
    What ranks print appears labelled by rank, as it comes, or with `ordered` rank after rank at the end.

    timeout   seconds until the run is given up; a deadlock is noticed and reported long before
    threads   processor threads each rank may use

    Under torchrun or mpiexec it runs on the first `world_size` of the ranks that were started, each on its own GPU
    with NCCL where the machine has GPUs, and every rank gets all results. Threads, prints and failures are then
    the business of whoever started them.

    Raises RankError, with the first failing rank's traceback and what the others did.
    """
    if not hasattr(world_size, "__index__") or world_size < 1:
        raise ValueError(f"world_size={world_size!r}: a run needs at least 1 rank")
    world_size = int(world_size)  # a number of numpy will do
    if timeout <= 0 or threads < 1:
        raise ValueError(f"timeout={timeout} and threads={threads} must both be positive")
    if already_a_rank():
        return join(fn, args, world_size, timeout)
    if world_size > MAX_LOCAL_RANKS:
        raise ValueError(
            f"world_size={world_size}: at most {MAX_LOCAL_RANKS} ranks share this machine; "
            "start more with torchrun on several machines"
        )
    return _run_here(fn, args, world_size, timeout, threads, ordered)


def warm() -> None:
    """Start the helper process now, in the background, so that the first `run` need not wait for its imports."""
    if not already_a_rank():
        with _lock:
            Helper.running()


def _run_here(
    fn: Callable[..., Any], args: tuple[Any, ...], world_size: int, timeout: float, threads: int, ordered: bool
) -> list[Any]:
    call = cloudpickle.dumps((fn, args))
    with _lock, tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        store = os.path.join(folder, "store")
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": loopback()}
        job = Job(call, world_size, timeout, threads, store, environment, list(sys.path), os.getcwd())
        helper, watch = Helper.running(), Watch(ordered)
        try:  # results, failure or Ctrl-C: no rank outlives this block
            helper.start(watch.add_ranks(world_size))
            watch.see_through(job)
        except BaseException:
            helper.end(PATIENCE)
            raise
        else:
            codes = helper.end()
        finally:
            watch.close()
    outcome = watch.outcome(codes)
    if outcome is not None:
        raise RankError(report(outcome))
    return [pickle.loads(rank.result or b"") for rank in watch.ranks]


def _renew_lock() -> None:
    """A process forked while another thread was in `run` has nobody to give the lock back."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
