"""What collectives cost: steps, bytes and seconds of each algorithm in the alpha-beta model.

A message of n bytes takes alpha + n/beta seconds: a latency and a bandwidth (Hockney 1994). Sources:
Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521; Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002, who prove that where only ranks add, no algorithm lets the busiest rank send less than
the ring does. With a switch that adds (NVLink SHARP) it can send less; that is left to a later chapter. The time to add
numbers is left out: memory is faster than links.
"""

from dataclasses import dataclass, replace
from math import ceil, log2

from .hardware import Link


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one collective takes. Bytes are of one direction."""

    steps: int  # messages that must follow each other
    serial: float  # bytes that must follow each other
    sent: float  # bytes leaving the rank that sends most
    received: float  # bytes entering the rank that receives most

    @property
    def busiest_link(self) -> float:
        """Bytes through the busiest link, in its busier direction; every rank has one link to a switch."""
        return max(self.sent, self.received)

    def seconds(self, link: Link) -> float:
        """Time when every rank has `link` to itself: steps * alpha + serial / beta."""
        return self.steps * link.latency + self.serial / link.bandwidth


def ring_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Reduce-scatter, then all-gather, around a ring: each rank sends 2(n-1)/n of the buffer."""
    one, two = reduce_scatter(nbytes, ranks), all_gather(nbytes, ranks)
    return Cost(
        steps=one.steps + two.steps,
        serial=one.serial + two.serial,
        sent=one.sent + two.sent,
        received=one.received + two.received,
    )


def tree_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Sums go up a binary tree, the result comes down; two trees, half of the buffer each, in small pieces.

    A rank inside one tree is a leaf of the other: it sends a half up, two halves down, and one up as a leaf. Pieces are
    taken to be so small that filling the pipeline costs only the steps. Sanders, Speck and Träff 2009,
    doi:10.1016/j.parco.2009.09.001; in NCCL since 2.4,
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/
    """
    _check(nbytes, ranks)
    carried = 2 * nbytes if ranks > 1 else 0.0
    return Cost(steps=2 * ceil(log2(ranks)), serial=carried, sent=carried, received=carried)


def all_reduce_seconds(nbytes: float, ranks: int, link: Link) -> float:
    """What the faster of ring and tree takes, as NCCL chooses: the ring for long messages, the tree for many ranks."""
    ring, tree = ring_all_reduce(nbytes, ranks), tree_all_reduce(nbytes, ranks)
    return min(ring.seconds(link), tree.seconds(replace(link, latency=link.slowest_hop)))


def reduce_scatter(nbytes: float, ranks: int) -> Cost:
    """Around a ring; nbytes is the whole buffer, each rank keeps 1/n of it."""
    return _ring(nbytes, ranks)


def all_gather(nbytes: float, ranks: int) -> Cost:
    """Around a ring; nbytes is the whole buffer, each rank brings 1/n of it."""
    return _ring(nbytes, ranks)


def broadcast(nbytes: float, ranks: int) -> Cost:
    """Binomial tree: the ranks that have the buffer double with each step."""
    _check(nbytes, ranks)
    steps = ceil(log2(ranks))
    return Cost(
        steps=steps, serial=steps * nbytes, sent=steps * nbytes, received=nbytes if ranks > 1 else 0.0
    )


def parameter_server(nbytes: float, ranks: int) -> Cost:
    """One rank is the server: the others send it their gradients, and it sends each of them the result.

    Everything crosses the server's link, so the time grows with n (Li et al. 2014, OSDI, spread the server
    over many machines for this reason). A server of its own would carry n instead of n-1 buffers each way.
    """
    _check(nbytes, ranks)
    others = ranks - 1
    return Cost(
        steps=2 * others, serial=2 * others * nbytes, sent=others * nbytes, received=others * nbytes
    )


def ring_through_servers(inside: Link, network: Link, *, gpus: int, cards: int) -> Link:
    """What a ring through servers runs at: `gpus` GPUs in each, joined by `cards` network cards in each.

    NCCL builds a ring for each card, so all cards of a server carry one all-reduce together, up to the rate inside.
    One hop of the ring in `gpus` leaves the server: its latency is the average over hops, as in NCCL's tuning model
    (see `hardware.NCCL`). A tree is charged the network's latency at every level, a little too much: some are inside.
    Errors: ValueError for a server without GPUs or cards.
    """
    if gpus < 1 or cards < 1:
        raise ValueError(f"servers of {gpus} GPUs and {cards} network cards make no ring; use at least 1 of each")
    rate = cards * network.bandwidth
    return replace(
        inside,
        name=f"{inside.name} in servers of {gpus}, {cards} x {network.name} between them",
        bandwidth=min(inside.bandwidth, rate) if gpus > 1 else rate,
        latency=((gpus - 1) * inside.latency + network.latency) / gpus,
        longest_latency=max(inside.latency, network.latency) if gpus > 1 else network.latency,
        source=f"{inside.source}; {network.source}",
    )


def bus_bandwidth(nbytes: float, seconds: float, ranks: int) -> float:
    """The rate of the links, bytes/s, behind an all-reduce that took so long: size / time * 2(n-1)/n.

    nccl-tests' "busbw", https://github.com/NVIDIA/nccl-tests/blob/v2.13.10/doc/PERFORMANCE.md
    Errors: ValueError for a time that is not positive.
    """
    _check(nbytes, ranks)
    if seconds <= 0:
        raise ValueError(f"{seconds} s is no duration; measure longer")
    return nbytes / seconds * 2 * (ranks - 1) / ranks


def _ring(nbytes: float, ranks: int) -> Cost:
    _check(nbytes, ranks)
    part = nbytes * (ranks - 1) / ranks
    return Cost(steps=ranks - 1, serial=part, sent=part, received=part)


def _check(nbytes: float, ranks: int) -> None:
    if ranks < 1 or ranks != int(ranks):
        raise ValueError(f"{ranks} ranks cannot talk; use a whole number of at least 1")
    if nbytes < 0:
        raise ValueError(f"a buffer of {nbytes} bytes does not exist; use at least 0")
