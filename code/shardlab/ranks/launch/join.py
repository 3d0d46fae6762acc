"""Ranks that torchrun or mpiexec started: meet them, and run on the first few of them."""

import atexit
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from .rank import loopback


def already_a_rank() -> bool:
    """Whether somebody else made this process a rank: torchrun, mpiexec, or `run` itself."""
    return ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or _mpi_started_us()


def _mpi_started_us() -> bool:
    """Whether we are one of several: Slurm's `srun jupyter lab` starts a single process in MPI's way, too."""
    alone = "1" in [os.environ.get(name) for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")]
    return not alone and any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


def join(fn: Callable[..., Any], args: tuple[Any, ...], world_size: int, timeout: float) -> list[Any]:
    """Run on the first `world_size` of the ranks that torchrun or mpiexec started; every one gets all results."""
    import torch.distributed as dist

    if not dist.is_initialized():
        _initialise(timeout)
    started = dist.get_world_size()
    if world_size > started:
        raise ValueError(
            f"run(world_size={world_size}), but only {started} ranks were started; "
            f"start more (torchrun --nproc-per-node {world_size}, mpiexec -n {world_size})"
        )
    if world_size not in _groups:
        _groups[world_size] = dist.group.WORLD if world_size == started else dist.new_group(list(range(world_size)))
    mine = fn(_groups[world_size], *args) if dist.get_rank() < world_size else None
    results: list[Any] = [None] * started
    dist.all_gather_object(results, mine)
    return results[:world_size]


_groups: dict[int, Any] = {}  # world size -> group of the first ranks; making one takes all ranks, so each is made once


def _initialise(timeout: float) -> None:
    """Meet the other ranks, on a GPU each where there are enough of them, else on the CPU."""
    import torch
    import torch.distributed as dist

    if _mpi_started_us() and "RANK" not in os.environ:
        _meet_through_mpi()
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    if on_gpus:
        torch.cuda.set_device(local_rank)
    elif local_ranks == int(os.environ["WORLD_SIZE"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timedelta(seconds=timeout))
    atexit.register(_leave)


def _leave() -> None:
    """Let go of every group in order; one that is still held when the interpreter ends would abort the process."""
    import torch.distributed as dist

    _groups.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _meet_through_mpi() -> None:
    """Tell torch, in torchrun's own words, what MPI knows: who we are, how many, and where rank 0 is."""
    try:
        from mpi4py import MPI
    except ImportError:
        message = "mpiexec started this program, but mpi4py is not installed: pip install mpi4py"
        raise ModuleNotFoundError(message) from None
    world = MPI.COMM_WORLD
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    with socket.socket() as free:
        free.bind(("", 0))
        address = (socket.gethostname() if here.size < world.size else "127.0.0.1", free.getsockname()[1])
    host, port = world.bcast(address)
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(here.rank),
        LOCAL_WORLD_SIZE=str(here.size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
