"""What is killed or stopped in a run of two nodes, and the program that trains in it."""

import signal
from dataclasses import dataclass
from functools import partial

GROUP = 6.0  # s, the time-out of the process group, instead of torch's half an hour
KILLED, STOPPED, NO_BATCH = signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1
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


RANK_1, AGENT_0, AGENT_1 = ("rank 1",), ("agent 0",), ("agent 1",)
NODE_1 = (*AGENT_1, *RANK_1)
again = partial(Ending, sent=KILLED, again=(1,), watched=40)  # somebody starts node 1 again
ENDINGS = (
    Ending(name="rank killed", sent=KILLED, to=RANK_1, watched=30),
    Ending(name="rank killed, store not shared", sent=KILLED, to=RANK_1, shared_store=False),
    Ending(name="rank killed, static", sent=KILLED, to=RANK_1, backend="static", watched=45),
    Ending(name="rank killed, no restarts", sent=KILLED, to=RANK_1, max_restarts=0, ranks=2),
    Ending(name="rank stopped", sent=STOPPED, to=RANK_1, watched=80),
    Ending(name="rank stopped, no restarts", sent=STOPPED, to=RANK_1, max_restarts=0),
    Ending(name="agent stopped", sent=STOPPED, to=AGENT_1, watched=25),
    Ending(name="agent killed", sent=KILLED, to=AGENT_1, watched=25),
    again(name="agent killed, started again", to=AGENT_1, watched=100),
    again(name="agent killed, started again, store not shared", to=AGENT_1, shared_store=False),
    again(name="agent killed, started again, static", to=AGENT_1, backend="static"),
    again(name="node killed, started again", to=NODE_1, watched=100),
    again(name="node killed, started again, store not shared", to=NODE_1, shared_store=False),
    Ending(name="agent 0 killed", sent=KILLED, to=AGENT_0),
    Ending(
        name="agent 0 killed, started again, static",
        sent=KILLED,
        to=AGENT_0,
        backend="static",
        again=(0, 1),
        watched=45,
    ),
    Ending(
        name="watchdog first", sent=NO_BATCH, to=RANK_1, max_restarts=0, watchdog=GROUP / 2
    ),
    Ending(
        name="time-out first", sent=NO_BATCH, to=RANK_1, max_restarts=0, watchdog=2 * GROUP
    ),
)
