"""What a message or a collective puts on every hop of a cluster, and its rate while it is alone.

Rings are laid as NCCL lays them: inside a node in the node's own order; between nodes one ring for
each network card, entering through that card, so that all cards of a node carry one collective
together. Every ring carries an equal part.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_CROSS_NIC, NCCL_ALGO)
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardlab.files.arguments import Positive, checked

from ..collectives.algorithms import SWITCH_STEP
from ..facts import hops
from ..facts.hardware import Link
from ..facts.hops import Hop
from ..facts.network import NETWORK, Cluster, Node


@dataclass(frozen=True, kw_only=True)
@checked
class Load:
    """What travels over each hop while every rank passes on one byte."""

    shares: dict[Hop, Positive]  # bytes through each hop
    latency: float  # seconds of one step; an average where the steps differ
    longest_latency: float  # of the slowest step

    @property
    def bandwidth(self) -> float:
        """Bytes/s that every rank can pass on while nothing else uses the hops."""
        rates = [hop.bandwidth / share for hop, share in self.shares.items()]
        return min(rates, default=float("inf"))


@checked
def message(cluster: Cluster, a: int, b: int) -> Load:
    """Load a message from GPU `a` to GPU `b`."""
    path = cluster.path(a, b)
    latency = hops.latency(path)
    return Load(shares=dict.fromkeys(path, 1.0), latency=latency, longest_latency=latency)


@checked
def rings(cluster: Cluster, gpus: Sequence[int]) -> Load:
    """Load the rings through these GPUs.

    Errors: ValueError for a GPU that does not exist or is repeated.
    """
    laid = orders(cluster, gpus)
    edges = [edge for ring in laid for edge in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return _sum_of(cluster, edges, len(laid))


@checked
def pairs(cluster: Cluster, gpus: Sequence[int]) -> Load:
    """Load equal messages from every GPU to every other one."""
    for gpu in gpus:
        cluster.node_of(gpu)
    others = len(gpus) - 1
    return _at_once(cluster, [(a, b) for a in gpus for b in gpus if a != b], max(others, 1))


@checked
def uneven_pairs(cluster: Cluster, gpus: Sequence[int], pieces: Sequence[Sequence[int]]) -> Load:
    """Load messages of pieces[i][j] bytes from gpus[i] to gpus[j], all at the same time.

    A rank passes on a byte while the one that sends most does. Errors: ValueError for pieces that
    are not one for each pair.
    """
    if [len(row) for row in pieces] != [len(gpus)] * len(gpus):
        raise ValueError(
            f"pieces={pieces} must have {len(gpus)} rows of {len(gpus)} numbers, for each GPU what "
            "it sends to each"
        )
    most = max(1, *map(sum, pieces))
    shares: dict[Hop, float] = {}
    for a, row in zip(gpus, pieces, strict=True):
        for b, nbytes in zip(gpus, row, strict=True):
            for hop in cluster.path(a, b) if nbytes else ():
                shares[hop] = shares.get(hop, 0.0) + nbytes / most
    return replace(pairs(cluster, gpus), shares=shares)


@checked
def star(cluster: Cluster, center: int, gpus: Sequence[int], *, inward: bool) -> Load:
    """Load messages from all other GPUs to `center` (inward), or from `center` to them."""
    ends = [(gpu, center) if inward else (center, gpu) for gpu in gpus if gpu != center]
    return _at_once(cluster, ends, 1)


@checked
def switch(cluster: Cluster, gpus: Sequence[int]) -> Load | None:
    """Load the NVSwitch that adds (NVLink SHARP), in and out.

    None where no such switch joins the GPUs.
    """
    node = cluster.node
    if not node.adds or len({cluster.node_of(gpu) for gpu in gpus}) > 1:
        return None
    shares: dict[Hop, float] = {}
    for gpu in gpus:
        up, down = cluster.to_switch(gpu)
        adding = Hop(
            name=f"{up.name}, adding", kind=up.kind, bandwidth=node.adds * up.bandwidth, latency=0.0
        )
        shares |= {up: 1.0, down: 1.0, adding: 1.0}
    return Load(shares=shares, latency=SWITCH_STEP, longest_latency=SWITCH_STEP)


@checked
def orders(cluster: Cluster, gpus: Sequence[int]) -> list[list[int]]:
    """List the rings through these GPUs, each as the order in which it visits them."""
    if len(set(gpus)) < len(gpus) or not gpus:
        raise ValueError(f"a ring visits every GPU once, not {list(gpus)}")
    members: dict[int, set[int]] = {}
    for gpu in sorted(gpus):
        members.setdefault(cluster.node_of(gpu), set()).add(gpu % cluster.node.gpus)
    if len(members) == 1:
        parts = {node: _inside(cluster, inside) for node, inside in members.items()}
    else:
        parts = {node: _by_card(cluster, inside) for node, inside in members.items()}
    return [
        [node * cluster.node.gpus + gpu for node, laid in parts.items() for gpu in laid[index]]
        for index in range(min(map(len, parts.values())))
    ]


@checked
def as_link(cluster: Cluster, gpus: Sequence[int]) -> Link:
    """Summarize the rings through these GPUs as one link, for formulas that take a link."""
    load = rings(cluster, gpus)
    joined = switch(cluster, gpus)
    slowest = min(load.shares, key=lambda hop: hop.bandwidth / load.shares[hop])
    return Link(
        name=f"rings through {len(gpus)} GPUs of {cluster.name}",
        kind=slowest.kind,
        bandwidth=load.bandwidth,
        latency=load.latency,
        source=cluster.node.source,
        latency_source="an average over the hops of the rings",
        longest_latency=load.longest_latency,
        adds=cluster.node.adds if joined else 0.0,
    )


def _at_once(cluster: Cluster, ends: Sequence[tuple[int, int]], parts: int) -> Load:
    """Add up messages of which none waits for another: the slowest has the last word."""
    load = _sum_of(cluster, ends, parts)
    return replace(load, latency=load.longest_latency)


def _sum_of(cluster: Cluster, ends: Sequence[tuple[int, int]], parts: int) -> Load:
    """Add up messages that run at the same time, each with 1/parts of what a rank passes on."""
    counts: dict[Hop, int] = {}
    slowest: dict[tuple[int, int], float] = {}
    for pair, count in Counter(ends).items():  # many rings share most of their messages
        path = cluster.path(*pair)
        slowest[pair] = hops.latency(path)
        for hop in path:
            counts[hop] = counts.get(hop, 0) + count
    latencies = [slowest[pair] for pair in ends] or [0.0]
    return Load(
        shares={hop: count / parts for hop, count in counts.items()},
        latency=sum(latencies) / len(latencies),
        longest_latency=max(latencies),
    )


def _inside(cluster: Cluster, members: set[int]) -> list[list[int]]:
    """List the orders in which rings visit some GPUs of one node."""
    every = cluster.node.rings or (tuple(range(cluster.node.gpus)),)
    return [[gpu for gpu in ring if gpu in members] for ring in every]


def _by_card(cluster: Cluster, members: set[int]) -> list[list[int]]:
    """List one order for each network card, entering and leaving through it if possible."""
    cards: dict[str, list[int]] = {}
    for gpu in sorted(members):
        cards.setdefault(cluster.node.card(gpu), []).append(gpu)
    laid = _inside(cluster, members)
    return [
        min(_begun(laid, near), key=lambda order: _detour(cluster.node, order))
        for near in cards.values()
    ]


def _begun(rings: list[list[int]], near: list[int]) -> Iterator[list[int]]:
    """Yield the rings, started at each of the GPUs near a card."""
    for ring in rings:
        for gpu in near:
            yield ring[ring.index(gpu) :] + ring[: ring.index(gpu)]


def _detour(node: Node, order: list[int]) -> tuple[bool, int]:
    """Measure how far a ring with these ends is from using one card, over short paths."""
    first = order[0]
    last = order[-1]
    different_cards = node.card(first) != node.card(last)
    return different_cards, _way_out(node, first) + _way_out(node, last)


def _way_out(node: Node, gpu: int) -> int:
    """Count the wires between a GPU of a node and the network."""
    card = node.card(gpu)
    return len(node.route(f"GPU {gpu}", card)) + len(node.route(card, NETWORK))
