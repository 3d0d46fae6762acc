"""From the call to the results: `launch.run` against the other ways to start ranks from a live Python process.

Every contender starts gloo ranks that do one all-reduce and return. They take turns, so that whatever else the machine
does hits all alike; medians are kept. Also: the memory of an idle rank, and what an open ledger costs.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from shardlab.ranks import comm, ledger
from shardlab.ranks.launch import run
from shardlab.ranks.launch.local import Helper

RANKS = (2, 4, 8)
WARM_ROUNDS, COLD_ROUNDS = 5, 3
SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import launch
launch.run(launch.greet, world_size={world_size})
"""


def greet(group: comm.Group) -> float:
    """What every contender's ranks do."""
    return float(comm.all_reduce(torch.ones(1), group))


def meet(rank: int, world_size: int, store: str) -> None:
    """A rank of the contenders that bring no group of their own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size)
    greet(dist.group.WORLD)
    dist.destroy_process_group()


def warm(world_size: int) -> None:
    run(greet, world_size=world_size)


def cold(world_size: int) -> None:
    Helper.drop()
    run(greet, world_size=world_size)


def spawn(world_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(meet, args=(world_size, f"{folder}/store"), nprocs=world_size)


def torchrun(world_size: int) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT.format(here=os.path.dirname(__file__), world_size=world_size))
        subprocess.run([*command, str(script)], check=True, capture_output=True)


def accelerate(world_size: int) -> None:
    from accelerate import notebook_launcher

    notebook_launcher(_greet_accelerated, (), num_processes=world_size, mixed_precision="no")


def _greet_accelerated() -> None:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    greet(dist.group.WORLD)


def contenders() -> dict[str, Callable[[int], None]]:
    """Name -> start so many ranks; without accelerate where it is not installed."""
    known = {"shardlab, warm": warm, "shardlab, cold": cold, "torch.multiprocessing.spawn": spawn, "torchrun": torchrun}
    if importlib.util.find_spec("accelerate") is None:
        print("accelerate is not installed (pip install 'shardlab[bench]'): left out")
        return known
    return {**known, "accelerate.notebook_launcher": accelerate}


def seconds(start: Callable[[int], None], world_size: int) -> float:
    begin = time.perf_counter()
    start(world_size)
    return time.perf_counter() - begin


def start_up(world_size: int) -> dict[str, float]:
    """Median seconds of every contender; cold ones count less often, for they are slow."""
    taken: dict[str, list[float]] = {}
    for turn in range(WARM_ROUNDS):
        for name, start in contenders().items():
            if name == "shardlab, warm":
                start(world_size)  # the helper may be gone: the cold contender drops it
            if name == "shardlab, warm" or turn < COLD_ROUNDS:
                taken.setdefault(name, []).append(seconds(start, world_size))
    return {name: round(statistics.median(times), 4) for name, times in taken.items()}


def own_megabytes(group: comm.Group) -> float:
    """Memory of an idle rank that it shares with nobody."""
    comm.barrier(group)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1e3


def ledger_cost(group: comm.Group, rounds: int = 200) -> dict[str, float]:
    """Median seconds of an all-reduce without and with an open ledger, taking turns."""
    taken: dict[str, list[float]] = {}
    for name, size in (("4 B", 1), ("4 MB", 1_000_000)):
        x = torch.ones(size)
        for _ in range(rounds if size == 1 else rounds // 10):
            with ledger.Ledger():
                taken.setdefault(f"{name}, open", []).append(_one(x, group))
            taken.setdefault(f"{name}, closed", []).append(_one(x, group))
    return {name: round(statistics.median(times), 7) for name, times in taken.items()}


def _one(x: torch.Tensor, group: comm.Group) -> float:
    begin = time.perf_counter()
    comm.all_reduce(x, group)
    return time.perf_counter() - begin


def main() -> None:
    rows: list[dict[str, Any]] = []
    for world_size in RANKS:
        medians = start_up(world_size)
        against = {name: round(medians["torch.multiprocessing.spawn"] / each, 2) for name, each in medians.items()}
        rows.append({"ranks": world_size, "seconds": medians, "times as fast as spawn": against})
        print(rows[-1], flush=True)
    result = {
        "rows": rows,
        "own MB of an idle rank": round(statistics.median(run(own_megabytes, world_size=4)), 1),
        "seconds of an all-reduce on 2 ranks, ledger": run(ledger_cost, world_size=2)[0],
    }
    print(result, "\nwritten to", record.write("launch", result).name)


if __name__ == "__main__":
    main()
