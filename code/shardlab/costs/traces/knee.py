"""How fast a network must be: step time against bandwidth, and where it levels off.

The idea of a knee is that of a roofline (Williams et al. 2009, doi:10.1145/1498765.1498785): left
of it the network is the bound, right of it the chips are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardlab.files.arguments import Positive, checked
from shardlab.trace import Event

from ..facts.network import NETWORK, Cluster, Wire
from .replay import replay

NEARLY = 0.05  # at the knee a step is this much longer than over an infinitely fast network
RANGE = (1e6, 1e15)  # bytes/s of a node: slower and faster than any real network


@checked
def at_rate(cluster: Cluster, rate: Positive) -> Cluster:
    """Replace the network: `rate` bytes/s in one direction for every node, over the same cards.

    Errors: ValueError for a node without network cards.
    """
    if not cluster.node.network_bandwidth:
        raise ValueError(f"{cluster.node.name} has no network card to speed up; use another node")
    factor = rate / cluster.node.network_bandwidth
    wires = tuple(
        _faster(wire, factor) if NETWORK in (wire.a, wire.b) else wire
        for wire in cluster.node.wires
    )
    return replace(cluster, node=replace(cluster.node, wires=wires))


def _faster(wire: Wire, factor: float) -> Wire:
    return replace(wire, link=replace(wire.link, bandwidth=factor * wire.link.bandwidth))


@checked
def curve(events: Sequence[Event], cluster: Cluster, rates: Sequence[Positive]) -> list[float]:
    """Return the seconds of the program for each bandwidth of a node, bytes/s."""
    return [replay(events, at_rate(cluster, rate)).seconds for rate in rates]


@checked
def knee(
    events: Sequence[Event], cluster: Cluster, known: Mapping[float, float] | None = None
) -> float:
    """Find the knee of a program that is replayed; see `of`."""
    return of(lambda rate: curve(events, cluster, [rate])[0], known)


@checked
def of(seconds: Callable[[float], float], known: Mapping[float, float] | None = None) -> float:
    """Find the bytes/s of a node above which a faster network makes a step at most 5 % faster.

    seconds: of a step, for the bytes/s of a node; a faster network never makes a step slower.
    known: seconds that were computed before, by rate: between those alone is the knee searched.
    Return 0 if no network makes it faster than that.
    """
    slow, fast = RANGE
    known = dict(known or {})
    if fast not in known:
        known[fast] = seconds(fast)
    enough = (1 + NEARLY) * known[fast]
    too_slow = max((rate for rate, each in known.items() if each > enough), default=0.0)
    sufficient = min(rate for rate, each in known.items() if each <= enough)

    def suffices(rate: float) -> bool:
        if too_slow < rate < sufficient:
            return seconds(rate) <= enough
        return rate >= sufficient

    if suffices(slow):
        return 0.0
    while fast / slow > 1.01:  # noqa: PLR2004, one percent
        middle = (slow * fast) ** 0.5
        slow, fast = (slow, middle) if suffices(middle) else (middle, fast)
    return fast
