"""All-reduce from 1 KiB to 64 MiB on 2, 4 and 8 ranks: our ring and halving-doubling, gloo's own, and MPI's.

`launch.run` starts the ranks for gloo and ours; `mpiexec` starts them anew for gloo and MPI (MPICH), so that every
process is a rank of both. Contenders take turns in the same processes: a round runs each of them once, in another order
every time, and a ratio is formed within a round. A time is that of the slowest rank; processor time, of all threads, is
added up over ranks. All return a new tensor, but for those "in place", which overwrite their input as DDP does.

Horovod's idea, too: many small tensors on the ring, one by one and fused.
"""

import functools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import race
import record
import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import comm, exchanges, launch
from shardlab.files.terminal import no_arguments
from shardlab.ranks import collectives
from shardlab.ranks.collectives import fusion
from shardlab.ranks.collectives.exchanges import execute

RANKS = (2, 4, 8)
SIZES = [2**power for power in range(10, 27, 2)]  # bytes: 1 KiB to 64 MiB
OURS, GLOO, MPI, BESIDE = "ring", "gloo", "MPI", "gloo beside MPI"
AGAINST = {
    "ring / gloo": (OURS, GLOO),
    "ring / gloo, in place": ("ring, in place", "gloo, in place"),
    "halving-doubling / gloo": ("halving-doubling", GLOO),
    "MPI / gloo": (MPI, BESIDE),
}
TURN_BYTES = 2**18  # a turn repeats a short message until it has sent about so many bytes, but not more often than
MOST = 16
LONG = 2**22  # bytes from which on the ring should be as fast as gloo
SECONDS = 4.0  # that all rounds of one size and number of ranks may take, but at least
ROUNDS = (5, 25)  # and at most
Taken = dict[str, dict[str, list[float]]]  # contender -> seconds, processor seconds -> of every round
TENSORS, TENSOR_BYTES = 128, 2**14  # what is fused: gradients of many small layers, 2 MiB in all


def contenders(group: comm.Group) -> dict[str, Callable[[Tensor], Any]]:
    """Name -> an all-reduce of a tensor: ours beside gloo's, or where mpiexec started us, MPI's beside gloo's."""
    if "mpi4py" in sys.modules:
        return {BESIDE: lambda x: comm.all_reduce(x, group), MPI: mpi_all_reduce}
    return {
        OURS: lambda x: collectives.all_reduce(x, group, check=False),
        "halving-doubling": lambda x: collectives.all_reduce(
            x, group, exchanges.halving_doubling_all_reduce, check=False
        ),
        GLOO: lambda x: comm.all_reduce(x, group),
        "ring, in place": lambda x: execute(exchanges.ring_all_reduce(group.size()), x, x, group),
        "gloo, in place": lambda x: dist.all_reduce(x, group=group),
    }


def mpi_all_reduce(x: Tensor) -> Tensor:
    from mpi4py import MPI as library

    y = torch.empty_like(x)
    library.COMM_WORLD.Allreduce(x.numpy(), y.numpy())
    return y


def take_turns(group: comm.Group, calls: dict[str, Callable[[], Any]], repeat: int) -> Taken:
    """What every contender takes, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    busy: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for turn in range(1 + ROUNDS[1]):
        for name in race.order(calls, turn):
            comm.barrier(group)
            start, used = time.perf_counter(), time.process_time()
            for _ in range(repeat):
                calls[name]()
            seconds[name].append((time.perf_counter() - start) / repeat)
            comm.barrier(group)  # until all is done, a thread of this rank may still have to send
            busy[name].append((time.process_time() - used) / repeat)
        spent = torch.tensor(time.perf_counter() - begin)
        if turn >= ROUNDS[0] and comm.all_reduce(spent, group, "max") > SECONDS:
            break
    return {  # the first round warms up
        name: {
            "seconds": comm.all_reduce(torch.tensor(seconds[name][1:]), group, "max").tolist(),
            "processor seconds": comm.all_reduce(torch.tensor(busy[name][1:]), group).tolist(),
        }
        for name in calls
    }


def all_reduces(group: comm.Group) -> dict[int, Taken]:
    """Size -> what every contender takes."""
    found = {}
    for nbytes in SIZES:
        x = torch.zeros(nbytes // 4)
        calls = {name: functools.partial(call, x) for name, call in contenders(group).items()}
        found[nbytes] = take_turns(group, calls, max(1, min(MOST, TURN_BYTES // nbytes)))
    return found


def fusions(group: comm.Group) -> Taken:
    """Fusion buffer -> what TENSORS tensors of TENSOR_BYTES each take."""
    tensors = [torch.zeros(TENSOR_BYTES // 4) for _ in range(TENSORS)]
    buffers = {"one by one": 0, "64 kB": 2**16, "256 kB": 2**18, "all in one": TENSORS * TENSOR_BYTES}
    calls = {
        name: functools.partial(fusion.all_reduce_fused, tensors, group, fusion_bytes=nbytes, check=False)
        for name, nbytes in buffers.items()
    }
    return take_turns(group, calls, 1)


def measure(ranks: int) -> tuple[dict[int, Taken], Taken]:
    """What all-reduces and fusions take on so many ranks."""
    found, fused = launch.run(all_reduces, world_size=ranks)[0], launch.run(fusions, world_size=ranks)[0]
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if mpiexec is None:
        print("mpiexec is not installed (pip install 'shardlab[mpi]'): left out")
        return found, fused
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        subprocess.run([mpiexec, "-n", str(ranks), sys.executable, __file__, str(ranks), str(file)], check=True)
        mpi = {int(nbytes): taken for nbytes, taken in json.loads(file.read_text()).items()}
    return {nbytes: {**taken, **mpi[nbytes]} for nbytes, taken in found.items()}, fused


def be_ranks(ranks: int, file: str) -> None:
    """In a process that mpiexec started: measure, and let rank 0 write it down."""
    from mpi4py import MPI as library

    found = launch.run(all_reduces, world_size=ranks)[0]
    if library.COMM_WORLD.rank == 0:
        Path(file).write_text(json.dumps(found))


def row(ranks: int, nbytes: int, taken: Taken) -> dict[str, Any]:
    """One row of the results."""
    pairs = {name: (a, b) for name, (a, b) in AGAINST.items() if a in taken}
    return {
        "ranks": ranks,
        "bytes": nbytes,
        "rounds": min(len(each["seconds"]) for each in taken.values()),
        "seconds": {name: race.quartiles(each["seconds"], 7) for name, each in taken.items()},
        **{
            key: {name: race.ratio(taken[a][what], taken[b][what]) for name, (a, b) in pairs.items()}
            for key, what in (("ratios", "seconds"), ("ratios of processor seconds", "processor seconds"))
        },
    }


def fused_row(ranks: int, taken: Taken) -> dict[str, Any]:
    alone = taken["one by one"]["seconds"]
    return {
        "ranks": ranks,
        "tensors": TENSORS,
        "bytes of each": TENSOR_BYTES,
        "seconds": {name: race.quartiles(each["seconds"], 7) for name, each in taken.items()},
        "times as fast": {name: race.ratio(alone, each["seconds"]) for name, each in taken.items()},
    }


def main() -> None:
    race.unchecked()
    rows, fused = [], []
    for ranks in RANKS:
        found, many = measure(ranks)
        rows += [row(ranks, nbytes, taken) for nbytes, taken in found.items()]
        fused.append(fused_row(ranks, many))
        for each in rows[-len(SIZES) :]:
            print(ranks, "ranks", each["bytes"], "bytes", {name: r["median"] for name, r in each["ratios"].items()})
        print(ranks, "ranks, fused:", {name: r["median"] for name, r in fused[-1]["times as fast"].items()}, flush=True)
    medians = {
        kind: round(statistics.median(each[kind]["ring / gloo"]["median"] for each in rows if each["bytes"] >= LONG), 3)
        for kind in ("ratios", "ratios of processor seconds")
    }
    result = {"medians of ring / gloo from 4 MiB on": medians, "rows": rows, "fusion": fused}
    print(medians, "written to", record.write("collectives", result).name)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        be_ranks(int(sys.argv[1]), sys.argv[2])
    else:
        no_arguments(__doc__)
        main()
