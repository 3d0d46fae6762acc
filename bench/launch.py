"""From the call to the results: `launch.run` against the other ways to start ranks from a live Python process.

Every contender starts gloo ranks that do one all-reduce and return. They take turns, so that whatever else the machine
does hits all alike; a ratio is formed within a round, and medians are kept. Also: the memory of an idle rank, and what
an all-reduce pays for a ledger, and for the flight recorder and the comparison of calls, which the launcher switches on
for its reports.
"""

import functools
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

import race
import record
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.launch import contracts, run
from shardlab.launch.local import Helper
from shardlab.ranks.observe import ledger

RANKS = (2, 4, 8)
ROUNDS = 3
WARM_RUNS = 3  # in a round; the others take seconds
MESSAGES = {"4 B": (1, 200), "4 MB": (1_000_000, 40)}  # elements, repetitions in a run
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


def seconds(name: str, start: Callable[[int], None], world_size: int) -> float:
    """Median seconds of one contender in one round."""
    runs = WARM_RUNS if name == "shardlab, warm" else 1
    if runs > 1:
        start(world_size)  # the last contender may have dropped the helper
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        start(world_size)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def start_up(world_size: int) -> dict[str, Any]:
    """One row of the results."""
    known = contenders()
    taken: dict[str, list[float]] = {name: [] for name in known}
    for turn in range(ROUNDS):
        for name in race.order(known, turn):
            taken[name].append(seconds(name, known[name], world_size))
    return {
        "ranks": world_size,
        "seconds": {name: round(statistics.median(times), 4) for name, times in taken.items()},
        "times as fast as spawn": {
            name: race.ratio(taken["torch.multiprocessing.spawn"], times)["median"] for name, times in taken.items()
        },
    }


def own_megabytes(group: comm.Group) -> float:
    """Memory of an idle rank that it shares with nobody."""
    comm.barrier(group)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1e3


def one_all_reduce(x: torch.Tensor, group: comm.Group) -> float:
    begin = time.perf_counter()
    comm.all_reduce(x, group)
    return time.perf_counter() - begin


def all_reduces(group: comm.Group) -> dict[str, float]:
    """Median seconds of an all-reduce, by size."""
    return {
        name: statistics.median(one_all_reduce(torch.ones(elements), group) for _ in range(repetitions))
        for name, (elements, repetitions) in MESSAGES.items()
    }


def all_reduces_after_a_ledger(group: comm.Group) -> dict[str, float]:
    with ledger.Ledger():
        comm.barrier(group)
    return all_reduces(group)


def all_reduces_where(name: str, value: str) -> dict[str, float]:
    """The same, with one variable of the environment set."""
    os.environ[name] = value
    try:
        return run(all_reduces, world_size=2)[0]
    finally:
        del os.environ[name]


def open_ledger(group: comm.Group) -> dict[str, float]:
    """Seconds of an all-reduce under an open ledger against one without, taking turns within the run."""
    result = {}
    for name, (elements, repetitions) in MESSAGES.items():
        x, taken = torch.ones(elements), ([], [])
        for _ in range(repetitions):
            with ledger.Ledger():
                taken[0].append(one_all_reduce(x, group))
            taken[1].append(one_all_reduce(x, group))
        result[name] = statistics.median(taken[0]) / statistics.median(taken[1])
    return result


def costs(rounds: int = 21) -> dict[str, dict[str, dict[str, float]]]:
    """What an all-reduce of 2 ranks takes, as a multiple of one in a run of the same round that saw no ledger."""
    kinds: dict[str, Callable[[], dict[str, float]]] = {
        "usual": lambda: run(all_reduces, world_size=2)[0],
        "after a ledger was closed": lambda: run(all_reduces_after_a_ledger, world_size=2)[0],
        "without the flight recorder": functools.partial(all_reduces_where, "TORCH_FR_BUFFER_SIZE", "0"),
        "without comparing calls": functools.partial(all_reduces_where, contracts.FOLDER, ""),
    }
    taken: dict[str, list[dict[str, float]]] = {}
    for turn in range(rounds):
        times = {name: kinds[name]() for name in race.order(kinds, turn)}
        for name in kinds.keys() - {"usual"}:
            taken.setdefault(name, []).append({size: times[name][size] / times["usual"][size] for size in MESSAGES})
        taken.setdefault("under an open ledger", []).append(run(open_ledger, world_size=2)[0])
    return {
        name: {size: race.quartiles([each[size] for each in ratios]) for size in MESSAGES}
        for name, ratios in sorted(taken.items())
    }


def main() -> None:
    rows = []
    for world_size in RANKS:
        rows.append(start_up(world_size))
        print(rows[-1], flush=True)
    result = {
        "rows": rows,
        "own MB of an idle rank": round(statistics.median(run(own_megabytes, world_size=4)), 1),
        "seconds of an all-reduce on 2 ranks, relative": costs(),
    }
    print(result, "\nwritten to", record.write("launch", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
