"""What NCCL chooses for an all-reduce, by its own model, and how long a collective takes in a node.

Three protocols trade latency for rate. LL sends a flag with every four bytes, so that nobody waits
for a separate signal: at most half of the rate. LL128 sends one with every 120 bytes, over links
that keep 128 bytes together: 92 %. Simple signals after each long piece. Facts of
https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc; left out are its limits for each
channel, collectives in the network, and what tuner plug-ins change.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log2, sqrt

from shardlab.files.arguments import Count, Positive, checked

from ..facts.hardware import PROTOCOL_STEPS, Link
from ..facts.network import NETWORK
from ..units import GB, us
from .algorithms import (
    SWITCH_STEP,
    Cost,
    all_gather,
    all_to_all,
    reduce_scatter,
    ring_all_reduce,
    switch_share,
)

# Seconds of a step down a tree; those around a ring are PROTOCOL_STEPS.
TREE_STEPS = {
    "NVLink": {"LL": 0.6 * us, "LL128": 1.25 * us, "Simple": 4.0 * us},
    "PCIe": {"LL": 1.0 * us, "LL128": 1.9 * us, "Simple": 4.0 * us},
    "network": {"LL": 5.0 * us, "LL128": 8.5 * us, "Simple": 14.0 * us},
}
STARTS = {  # seconds before the first step
    "ring": {"LL": 6.6 * us, "LL128": 14.0 * us, "Simple": 8.4 * us},
    "tree": {"LL": 6.8 * us, "LL128": 14.0 * us, "Simple": 8.4 * us},
}
SWITCH_SHARE = 5 / 6  # of the rate at which an NVSwitch adds (NVLS), for an all-reduce
RING_SHARES = {"LL": 1 / 2, "LL128": 0.92, "Simple": 1.0}
LL128_ALONE = 0.7  # where each node has one GPU
TREE_SHARE = 0.92
TREE_SHARES = {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1.0}
TREE_LL128_INSIDE = 7 / 9
# Bytes/s that LL reaches at most: in one node by GPU, on two nodes, and on more (with Intel's
# processors).
LL_INSIDE = {"V100": 39.0 * GB, "A100": 87.7 * GB, "H100": 141.0 * GB, "B200": 282.0 * GB}
LL_ON_TWO, LL_ON_MORE = 39.0 * GB, 20.4 * GB
# A ring of Simple over several nodes waits longer, and its steps inside a node take at least what
# posting to the network takes.
PLATEAU = 1.4
POSTING = {"LL": 1.0 * us, "LL128": 1.0 * us, "Simple": 3.0 * us}
# The rate of trees falls short for sizes between: factors for 64 bytes, 128, 256, ... 256 MiB.
_TREE_FACTORS = {
    "LL": (
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
        0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0,
    ),
    "LL128": (
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
        0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0,
    ),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
        0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
@checked
class Communicator:
    """The GPUs that all-reduce together, as NCCL's model sees them."""

    num_nodes: Count = 1
    gpus: Count  # in each node
    inside: Link  # the rate that a GPU reaches inside its node
    between: Link | None = None  # the rate that all rings of a node together reach; None: one node
    generation: str = "H100"  # see LL_INSIDE
    adds: float = 0.0  # see `network.Node`

    def __post_init__(self) -> None:
        if self.generation not in LL_INSIDE:
            known = ", ".join(LL_INSIDE)
            raise ValueError(f"unknown generation {self.generation!r}; known: {known}")
        if self.ranks == 1 or (self.num_nodes > 1) != (self.between is not None):
            raise ValueError(
                f"num_nodes={self.num_nodes} with gpus={self.gpus} and between={self.between}: "
                "give at least two GPUs, and the link between nodes where there are several"
            )

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return self.num_nodes * self.gpus

    @property
    def slowest(self) -> float:
        """Bytes/s of a ring through all GPUs."""
        rates = [self.inside.bandwidth] * (self.gpus > 1)
        return min([*rates, self.between.bandwidth] if self.between else rates)


@dataclass(frozen=True, kw_only=True)
@checked
class AlgorithmChoice:
    """An algorithm with a protocol, which NCCL may choose for an all-reduce."""

    algorithm: str  # "ring", "tree", "NVLS" or "NVLS tree"
    protocol: str  # "LL", "LL128" or "Simple"
    latency: Positive  # seconds
    rate: Positive  # bytes of the buffer in a second

    def __post_init__(self) -> None:
        if self.protocol not in RING_SHARES:
            known = ", ".join(RING_SHARES)
            raise ValueError(f"unknown protocol {self.protocol!r}; known: {known}")

    @property
    def name(self) -> str:
        """ "ring, LL128"."""
        return f"{self.algorithm}, {self.protocol}"

    def seconds(self, nbytes: Positive) -> float:
        """Time an all-reduce of `nbytes`."""
        size = int(log2(nbytes / 64)) if nbytes >= 64 else 0  # noqa: PLR2004
        factors = _TREE_FACTORS[self.protocol]
        factor = factors[size] if self.algorithm == "tree" and size < len(factors) else 1.0
        return self.latency + nbytes / (factor * self.rate)


@checked
def choices(group: Communicator) -> list[AlgorithmChoice]:
    """List every choice that NCCL's model compares."""
    found = list(_rings_and_trees(group))
    if group.adds:
        found.append(_switch(group))
    return found


@checked
def chosen(nbytes: Positive, group: Communicator) -> AlgorithmChoice:
    """Return what NCCL chooses for an all-reduce of `nbytes`."""
    return min(choices(group), key=lambda choice: choice.seconds(nbytes))


def _all_to_all_in_rounds(nbytes: float, ranks: int) -> Cost:
    return replace(all_to_all(nbytes, ranks), steps=ranks - 1)


NODE_OPERATIONS: dict[str, Callable[[float, int], Cost]] = {
    "all_reduce": ring_all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": _all_to_all_in_rounds,
}


@checked
def node_seconds(op: str, nbytes: Positive, ranks: Count, link: Link) -> float:
    """Time a collective that runs alone in one node.

    The closed forms have no start, give short messages the steps of long ones, and have no way
    between. Here a kernel starts and takes steps of LL. The bytes X follow at the rate of `link`,
    cut into pieces that fill a pipeline of `steps` links: with the best size of a piece this adds
    sqrt(steps * alpha * X / beta). No constant was chosen on recordings; `published.recordings`
    holds the result to them. A group of two or four GPUs takes longer still, and so does
    the MI300X. nbytes: the larger of a rank's input and output.

    Errors: ValueError for an operation that is not in NODE_OPERATIONS, or a link between nodes.
    """
    if op not in NODE_OPERATIONS:
        raise ValueError(f"op={op!r} is unknown; known: {', '.join(NODE_OPERATIONS)}")
    if link.kind == NETWORK:
        raise ValueError(
            f"{link.name} leaves the node, where this formula is no better than the closed forms; "
            "use those of `collectives`"
        )
    if ranks == 1:
        return 0.0
    cost = NODE_OPERATIONS[op](nbytes, ranks)
    protocols = PROTOCOL_STEPS.get(link.kind, PROTOCOL_STEPS["NVLink"])
    filling = cost.steps * link.latency
    first = STARTS["ring"]["LL"] + protocols["LL"] / protocols["Simple"] * filling
    seconds = _pipelined(first, filling, cost.serial / link.bandwidth)
    if op == "all_reduce" and link.adds:
        added = switch_share(ranks) * nbytes / (link.adds * link.bandwidth)
        seconds = min(seconds, _pipelined(SWITCH_STEP, SWITCH_STEP, added))
    return seconds


def _pipelined(first: float, filling: float, wires: float) -> float:
    return first + wires + sqrt(filling * wires)


def _rings_and_trees(group: Communicator) -> Iterator[AlgorithmChoice]:
    nodes = group.num_nodes
    ranks = group.ranks
    for protocol in RING_SHARES:
        outer = nodes - 1
        inner = _step(PROTOCOL_STEPS, group, protocol)
        if nodes > 1:
            inner = max(inner, POSTING[protocol])
        latency = 2 * ((ranks - 1 - outer) * inner + outer * PROTOCOL_STEPS["network"][protocol])
        share = RING_SHARES[protocol]
        if group.gpus == 1:  # nothing hides the network's steps, so they cost as in a tree
            share = LL128_ALONE if protocol == "LL128" else share
            latency = 2 * outer * TREE_STEPS["network"][protocol]
        latency += STARTS["ring"][protocol]
        latency *= PLATEAU if nodes > 1 and protocol == "Simple" else 1
        rate = _limited(share * group.slowest, group, protocol)
        rate *= ranks / (2 * (ranks - 1))
        yield AlgorithmChoice(algorithm="ring", protocol=protocol, latency=latency, rate=rate)

        inner = _step(TREE_STEPS, group, protocol)
        depth = int(log2(nodes)) * TREE_STEPS["network"][protocol]
        latency = STARTS["tree"][protocol] + 2 * ((group.gpus - 1) * inner + depth)
        share = TREE_SHARES[protocol]
        if nodes == 1 and protocol == "LL128":
            share = TREE_LL128_INSIDE
        rate = _limited(TREE_SHARE * share * _tree_bandwidth(group), group, protocol) / 2
        yield AlgorithmChoice(algorithm="tree", protocol=protocol, latency=latency, rate=rate)


def _tree_bandwidth(group: Communicator) -> float:
    """Return twice the bytes of the buffer that trees pass in a second.

    On two nodes each half of the buffer crosses once in each direction, half of what a ring sends.
    """
    if group.num_nodes != 2 or group.between is None:  # noqa: PLR2004
        return group.slowest
    crossing = 2 * group.between.bandwidth
    return min(crossing, group.inside.bandwidth) if group.gpus > 1 else crossing


def _switch(group: Communicator) -> AlgorithmChoice:
    """Add in the NVSwitch; between nodes, sums of nodes go up and down a tree."""
    nodes = group.num_nodes
    inside = group.adds * SWITCH_SHARE * group.inside.bandwidth
    if group.between is None:
        return AlgorithmChoice(
            algorithm="NVLS", protocol="Simple", latency=SWITCH_STEP, rate=inside
        )
    depth = int(log2(nodes)) * TREE_STEPS["network"]["Simple"]
    crossing = group.between.bandwidth / (1 if nodes == 2 else 2)  # noqa: PLR2004
    return AlgorithmChoice(
        algorithm="NVLS tree",
        protocol="Simple",
        latency=SWITCH_STEP + 2 * depth,
        rate=min(inside, SWITCH_SHARE * crossing),
    )


def _step(steps: dict[str, dict[str, float]], group: Communicator, protocol: str) -> float:
    return steps.get(group.inside.kind, steps["PCIe"])[protocol]


def _limited(rate: float, group: Communicator, protocol: str) -> float:
    """Limit the bytes/s of LL."""
    if protocol != "LL":
        return rate
    if group.num_nodes == 1:
        return min(rate, LL_INSIDE[group.generation])
    return min(rate, LL_ON_TWO if group.num_nodes == 2 else LL_ON_MORE)  # noqa: PLR2004
