"""What is killed or stopped in a run of two nodes, and the program that trains in it."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.files.described import tomllib

GROUP = 6.0  # s, the time-out of the process group, instead of torch's half an hour
# Each rank keeps a file: its process id, rank and start, then the time of every step.
PROGRAM = """
import os, signal, sys, threading, time, traceback
steps = open(f"steps-{os.getpid()}", "w", buffering=1)
print(os.getpid(), os.environ["RANK"], time.monotonic(), file=steps)
from datetime import timedelta
import torch, torch.distributed as dist
torch.set_num_threads(1)

def next_batch(*_):
    time.sleep(1000)

def watch(seconds, main):
    while time.monotonic() - last < seconds:
        time.sleep(0.1)
    where = traceback.extract_stack(sys._current_frames()[main])[-1].name
    print(f"watchdog of rank {dist.get_rank()}: no step for {seconds:g} s, in {where}", flush=True)
    os._exit(3)

signal.signal(signal.SIGUSR1, next_batch)
timeout = timedelta(seconds=float(os.environ["GROUP_SECONDS"]))
dist.init_process_group("gloo", timeout=timeout)
last = time.monotonic()
if seconds := float(os.environ["WATCHDOG_SECONDS"]):
    threading.Thread(target=watch, args=(seconds, threading.get_ident()), daemon=True).start()
while True:
    dist.all_reduce(torch.ones(1))
    last = time.monotonic()
    print(last, file=steps)
    time.sleep(0.1)
"""
BACKENDS = {
    "c10d": (
        "--rdzv-id=one",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-conf=is_host={host}",
    ),
    "static": ("--master-addr=127.0.0.1", "--master-port={port}"),
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """One event: which signal is sent to whom in which run, and which nodes are started again."""

    name: str
    sent: signal.Signals
    to: tuple[str, ...]  # "rank 1", "agent 0"
    backend: str = "c10d"
    max_restarts: int = 1
    ranks: int = 1  # on each node
    shared_store: bool = True  # ranks use the store of the agents, as torchrun does by default
    watchdog: float = 0.0  # s without a step, after which a rank ends itself; 0: no watchdog
    again: tuple[int, ...] = ()  # nodes whose agent is started again, with the same options
    later: float = 5.0  # s from the event to that start
    watched: float = 20.0  # s after the event, less if all processes have ended before


def _ending(row: dict[str, Any]) -> Ending:
    known = row | {"sent": signal.Signals[row["sent"]]}
    return Ending(**{name: tuple(each) if isinstance(each, list) else each for name, each in known.items()})


DATA = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))
ENDINGS = tuple(map(_ending, DATA["endings"]))
