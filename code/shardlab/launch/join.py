"""Join the ranks that torchrun or mpiexec started, and run on the first few of them."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from . import ending, travel
from .job import loopback

# environment: number of a process -> how many there are. MPI's, the innermost launcher first:
# https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html, and srun --mpi=pmix
OF_MPI = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "SLURM_STEP_NUM_TASKS",
}
# of launchers whose tasks need not know each other; see srun(1), flux-run(1) and jsrun
OF_TASKS = {
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "flux run": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    "jsrun": ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
}


def already_a_rank() -> bool:
    """Tell whether this process is a rank, started by torchrun, mpiexec or `run` itself."""
    return ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or _mpi_started_us()


def _mpi_started_us() -> bool:
    """Tell whether MPI started this process as one of several.

    Slurm's `srun jupyter lab` starts a single process in the same way; that one is no rank. The
    first launcher that has set a rank decides: an mpiexec may run in a shell that srun started.
    """
    sizes = [os.environ.get(size) for rank, size in OF_MPI.items() if rank in os.environ]
    return bool(sizes) and sizes[0] != "1"


def refuse_a_task_of_several() -> None:
    """Refuse to start ranks in each of several tasks, which would train several times over.

    Errors: ValueError in a task of a launcher that has given it a number, and not torch's or MPI's.
    """
    for launcher, (rank, size) in OF_TASKS.items():
        tasks = os.environ.get(size, "")
        if rank in os.environ and tasks.isdecimal() and int(tasks) > 1:
            raise ValueError(
                f"this is task {os.environ[rank]} of the {tasks} that {launcher} started, and each "
                f"would start ranks of its own; start one torchrun on each machine "
                f"({launcher} torchrun --nproc-per-node ...), start one task ({launcher} -n 1), or "
                f"unset {rank} if each task is meant to run on its own"
            )


def join(
    fn: Callable[..., Any], args: tuple[Any, ...], world_size: int, timeout: float
) -> list[Any]:
    """Run fn(group, *args) on the first `world_size` ranks; return all results on every rank."""
    import torch.distributed as dist

    from shardlab import comm

    from . import contracts, peers

    if not dist.is_initialized():
        _initialise(timeout)
        if os.environ.get(contracts.FOLDER):
            peers.install(contracts.comparisons(os.environ[contracts.FOLDER]))
    started = dist.get_world_size()
    if world_size > started:
        raise ValueError(
            f"run(world_size={world_size}), but only {started} ranks were started; "
            f"start more (torchrun --nproc-per-node {world_size}, mpiexec -n {world_size})"
        )
    group = _group_of_first(world_size)
    mine = b""
    if dist.get_rank() < world_size:
        mine = travel.away(fn, group, args, comm.device(group))
    results = [b""] * started
    dist.all_gather_object(results, mine)
    return [travel.unpacked(result) for result in results[:world_size]]


_groups: dict[int, Any] = {}  # world size -> group of the first ranks


def _group_of_first(count: int) -> Any:
    """Return the group of the first `count` ranks, which all ranks make together, once."""
    import torch.distributed as dist

    if count == dist.get_world_size():
        return dist.group.WORLD
    if count not in _groups:
        _groups[count] = dist.new_group(list(range(count)))
    return _groups[count]


def _initialise(timeout: float) -> None:
    """Meet the other ranks: with a GPU for each where the machine has GPUs, else on the CPU."""
    import torch
    import torch.distributed as dist

    learn_rank()
    gpu = own_gpu()
    if gpu is not None:
        torch.cuda.set_device(gpu)
    elif os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(
        "gloo" if gpu is None else "nccl", timeout=timedelta(seconds=timeout), device_id=gpu
    )
    ending.leave_at_the_end(_groups)


def learn_rank() -> None:
    """Set torchrun's environment variables where MPI started this process as a rank.

    Errors: ValueError in one of several tasks that nobody has made ranks.
    """
    if _mpi_started_us() and "RANK" not in os.environ:
        _meet_through_mpi()
    elif not already_a_rank():
        refuse_a_task_of_several()


def own_gpu() -> Any:
    """Return this rank's GPU, or None on a machine without GPUs.

    Errors: ValueError where ranks would have to share a GPU, or where it is unknown which is ours.
    """
    import torch

    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
    if missing:
        raise ValueError(
            f"RANK is set, but not {' or '.join(missing)}; start the ranks with torchrun or "
            "mpiexec, or unset RANK and WORLD_SIZE to start ranks here"
        )
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if 0 < gpus < ranks:
        raise ValueError(
            f"{ranks} ranks on this machine, but each sees {gpus} GPU{'s' * (gpus > 1)}; "
            f"start at most {gpus} here, show each rank all GPUs "
            "(Slurm's --gpus-per-task hides them), or set CUDA_VISIBLE_DEVICES= to use the CPU"
        )
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else None


def _meet_through_mpi() -> None:
    """Set torchrun's environment variables from what MPI knows about the ranks."""
    try:
        from mpi4py import MPI
    except ImportError:
        message = "mpiexec started this program, but mpi4py is not installed: pip install mpi4py"
        raise ModuleNotFoundError(message) from None
    world = MPI.COMM_WORLD
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    host = socket.gethostname() if here.size < world.size else "127.0.0.1"
    host, port = world.bcast((host, port))
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(here.rank),
        LOCAL_WORLD_SIZE=str(here.size),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
