"""The replay against the clock: the same programs on two hosts of this machine, measured beside replayed.

Also: how long a replay takes, and how much slower recording makes a training step. Where two hosts cannot be made, that
part is left out, with the reason.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import race
import record
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from two_hosts import TwoHosts, unavailable

from shardlab import comm, exchanges, trace
from shardlab.costs.facts import hardware, network, nodes
from shardlab.costs.facts.hardware import Link
from shardlab.costs.facts.network import NETWORK, Cluster, Node, Wire
from shardlab.costs.traces import writing
from shardlab.costs.traces.replay import replay as play_again
from shardlab.files.terminal import no_arguments
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import collectives, transformer
from shardlab.ranks.observe import ledger

RATES = {"50 Mb/s": 50e6, "200 Mb/s": 200e6}  # of the cable, in each direction
NBYTES, ROUNDS, RANKS = 1_000_000, 5, 4
LOCAL = 1e9  # bytes/s between two processes of a host: any number far above the cable's will do
PINGS = 20


# ---- what is played on two hosts: two ranks on each ------------------------------------------------------------------


def ping(x: torch.Tensor, group: comm.Group) -> None:
    """There and back, between the hosts; the other two ranks watch."""
    if group.rank() in (0, 2):
        other = 2 - group.rank()
        for _ in range(PINGS):
            if group.rank() == 0:
                comm.send(x, group, to=other)
                comm.receive(x, group, source=other)
            else:
                comm.receive(x, group, source=other)
                comm.send(x, group, to=other)


def message(x: torch.Tensor, group: comm.Group, pairs: int = 1) -> None:
    """Ranks of the first host send to their like on the second, so many at once."""
    rank = group.rank()
    if rank < pairs:
        comm.send(x, group, to=rank + 2)
    elif 2 <= rank < 2 + pairs:
        comm.receive(x, group, source=rank - 2)


def both_ways(x: torch.Tensor, group: comm.Group) -> None:
    if group.rank() in (0, 2):
        comm.exchange(x, group, to=2 - group.rank(), source=2 - group.rank())


def reduced(plan: Callable[[int], exchanges.Plan]) -> Callable[[torch.Tensor, comm.Group], Any]:
    return lambda x, group: collectives.all_reduce(x, group, plan, check=False)


PLAYED: dict[str, Callable[[torch.Tensor, comm.Group], Any]] = {
    "one message": message,
    "two messages at once": lambda x, group: message(x, group, 2),
    "there and back at once": both_ways,
    "all-reduce, naive": reduced(exchanges.naive_all_reduce),
    "all-reduce, binomial tree": reduced(exchanges.binomial_all_reduce),
    "all-reduce, ring": reduced(exchanges.ring_all_reduce),
    "all-reduce, halving-doubling": reduced(exchanges.halving_doubling_all_reduce),
    "all-reduce, two levels": reduced(lambda n: exchanges.hierarchical_all_reduce(n, 2)),
    "all-reduce, gloo's own": lambda x, group: comm.all_reduce(x, group),
}


def play(group: comm.Group) -> dict[str, Any]:
    """On a rank: seconds of every program, until the last rank is done, and what this rank recorded of it.

    Of several rounds the fastest counts: whatever else the machine does can only add.
    """
    told = {"ping": {"seconds": fastest(lambda: ping(torch.ones(1), group), group)}}
    x = torch.ones(NBYTES // 4)
    for name, program in PLAYED.items():
        program(x, group)  # connections are made before the clock runs
        with ledger.Ledger() as book:
            program(x, group)
        taken = fastest(lambda program=program: program(x, group), group)
        told[name] = {"seconds": taken, "program": trace.plain(book.trace)}
    return told


def fastest(action: Callable[[], Any], group: comm.Group) -> float:
    return min(seconds(action, group) for _ in range(ROUNDS))


def seconds(action: Callable[[], Any], group: comm.Group) -> float:
    """From a common start until the last rank has ended; the barriers' own time is that of a few small messages."""
    comm.barrier(group)
    start = time.perf_counter()
    action()
    comm.barrier(group)
    return time.perf_counter() - start


def cluster(latency: float, rate: float) -> Cluster:
    """Two hosts of two ranks; a rank reaches the others of its host much faster than the cable."""
    own = Link(name="memory", kind="host", bandwidth=LOCAL, latency=latency, source="", latency_source="")
    cable = Link(name="cable", kind="network", bandwidth=rate, latency=latency, source="", latency_source="")
    wires = [Wire(a=f"GPU {i}", b="PCIe switch 0", link=own) for i in range(2)]
    wires += [Wire(a="NIC 0", b="PCIe switch 0", link=own), Wire(a="NIC 0", b=NETWORK, link=cable)]
    host = Node(name="host of this machine", chip=hardware.chip("H100 PCIe 80 GB"), wires=tuple(wires), source="")
    return Cluster(node=host, num_nodes=2)


def two_hosts() -> dict[str, Any]:
    """Measured beside replayed, for every rate of the cable; the link is told by pings and by one message."""
    why_not = unavailable()
    if why_not:
        return {"left out": why_not}
    found: dict[str, Any] = {"bytes": NBYTES, "ranks": RANKS, "rounds": ROUNDS}
    for name, bits in RATES.items():
        with TwoHosts(bits) as hosts:
            told = json.loads(hosts.run(__file__, "play", ranks=RANKS).splitlines()[-1])
        latency = told[0]["ping"]["seconds"] / (2 * PINGS)
        rate = NBYTES / (told[0]["one message"]["seconds"] - latency)
        rows = {}
        for program in PLAYED:
            events = [event for rank in told for event in trace.from_plain(rank[program]["program"])]
            played = play_again(events, cluster(latency, rate), link_utilisation=1.0)
            rows[program] = {"measured": max(rank[program]["seconds"] for rank in told), "replayed": played.seconds}
        found[name] = {"latency": latency, "bandwidth": rate, "programs": rows}
    return found


# ---- how long a replay takes -----------------------------------------------------------------------------------------


def speed() -> list[dict[str, Any]]:
    """Rings of 64 ranks, one after another, on a uniform network and over shared cards."""
    one = writing.of_plan(exchanges.ring_all_reduce(64), 2**26)
    chip, link = hardware.chip("H100 SXM 80 GB"), hardware.link("NVLink 4")
    rows = []
    for times in (1, 4):
        events = repeated(one, times)
        shared = [nodes.cluster(name, 8) for name in ("DGX H100", "PCIe box, 100 GbE")]
        for where in (network.uniform(64, link, chip), *shared):
            start = time.process_time()
            play_again(events, where)
            rows.append({"cluster": where.name, "events": len(events), "seconds": time.process_time() - start})
    return rows


def repeated(events: list[trace.Event], times: int) -> list[trace.Event]:
    """The program of every rank, so many times over."""
    found = []
    for rank in sorted({event.rank for event in events}):
        mine = [event for event in events if event.rank == rank]
        for turn in range(times):
            found += [e if e.number is None else replace(e, number=e.number + turn * len(mine)) for e in mine]
    return found


# ---- how much recording costs ----------------------------------------------------------------------------------------

MODELS = {"small": (64, 2, 8, 32, 40), "medium": (256, 4, 8, 64, 16), "large": (512, 4, 8, 128, 8)}


class Nothing(TorchDispatchMode):
    """What any mode costs: torch calls Python for every operation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def recording(
    group: comm.Group, width: int, layers: int, batch: int, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Processor time of a step of torch's DDP with a ledger, and with a mode that does nothing, over that without.

    Processor time, for other programs on the machine do not change it.
    """
    torch.manual_seed(0)
    spec = TransformerSpec(
        vocab_size=256, context_length=tokens, hidden_size=width, num_layers=layers, num_heads=max(2, width // 64)
    )
    model = torch.nn.parallel.DistributedDataParallel(transformer.Transformer(spec), process_group=group)
    data = torch.randint(256, (batch, tokens + 1))

    def step(mode: Any) -> float:
        start = time.process_time()
        with mode:
            model.zero_grad()
            model(data[:, :-1], data[:, 1:]).backward()
        return time.process_time() - start

    ratios: dict[str, list[float]] = {"ledger": [], "empty mode": []}
    for turn in range(rounds + 2):
        modes = {"none": nullcontext(), "ledger": ledger.Ledger(), "empty mode": Nothing()}
        taken = {name: step(modes[name]) for name in list(modes)[:: 1 if turn % 2 else -1]}
        for name, each in ratios.items():
            each.append(taken[name] / taken["none"])
    return {name: each[2:] for name, each in ratios.items()}


def recording_all() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, sizes in MODELS.items():
        ratios = run(recording, *sizes, world_size=2)[0]
        found[name] = {what: race.quartiles(each) for what, each in ratios.items()}
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["play"]:
        torch.set_num_threads(1)
        told = run(play, world_size=RANKS)
        if torch.distributed.get_rank() == 0:
            print(json.dumps(told))
    else:
        no_arguments(__doc__)
        result = {"two hosts": two_hosts(), "speed": speed(), "recording": recording_all()}
        print(record.write(Path(__file__).stem, result))
