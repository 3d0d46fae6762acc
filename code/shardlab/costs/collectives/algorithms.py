"""What collectives cost: steps, bytes and seconds of each algorithm in the alpha-beta model.

A message of n bytes takes alpha + n/beta seconds: a latency and a bandwidth (Hockney 1994). Sources:
Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521; Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002, who prove that where only ranks add, no algorithm lets the busiest rank send less than
the ring does. With a switch that adds (NVLink SHARP) it can send less; that is left to a later chapter. The time to add
numbers is left out: memory is faster than links.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2

from ..facts.hardware import Link

# What nccl-tests multiplies size / time by, so that links of one rate give one number for any n. The size is the larger
# of what goes in and what comes out on one rank. https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one collective takes. Bytes are of one direction."""

    steps: int  # messages that must follow each other
    serial: float  # bytes that must follow each other
    sent: float  # bytes leaving the rank that sends most
    received: float  # bytes entering the rank that receives most

    def __add__(self, after: "Cost") -> "Cost":
        """One after the other, where the same rank is the busiest in both."""
        return Cost(
            steps=self.steps + after.steps,
            serial=self.serial + after.serial,
            sent=self.sent + after.sent,
            received=self.received + after.received,
        )

    @property
    def busiest_link(self) -> float:
        """Bytes through the busiest link, in its busier direction; every rank has one link to a switch."""
        return max(self.sent, self.received)

    def seconds(self, link: Link) -> float:
        """Time when every rank has `link` to itself: steps * alpha + serial / beta."""
        return self.steps * link.latency + self.serial / link.bandwidth


# ---- all-reduce ------------------------------------------------------------------------------------------------------


def parameter_server(nbytes: float, ranks: int) -> Cost:
    """The naive one: all others send their buffers to one rank, and it sends each of them the result.

    Everything crosses that rank's link, so the time grows with n (Li et al. 2014, OSDI, spread the server
    over many machines for this reason). A server of its own would carry n instead of n-1 buffers each way.
    """
    _check(nbytes, ranks)
    others = ranks - 1
    return Cost(steps=2 * others, serial=2 * others * nbytes, sent=others * nbytes, received=others * nbytes)


def binomial_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Up a binomial tree and down again, the whole buffer at each of 2 ceil(log2(n)) steps."""
    _check(nbytes, ranks)
    steps = _log(ranks)
    return Cost(steps=2 * steps, serial=2 * steps * nbytes, sent=steps * nbytes, received=steps * nbytes)


def ring_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Reduce-scatter, then all-gather, around a ring: each rank sends 2(n-1)/n of the buffer."""
    return reduce_scatter(nbytes, ranks) + all_gather(nbytes, ranks)


def recursive_doubling_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Swap the whole buffer with partners at distance 1, 2, 4 ...; if n is no power of two, two steps more."""
    _check(nbytes, ranks)
    swaps, folded = _core(ranks)
    one_way = (swaps + folded) * nbytes
    return Cost(steps=swaps + 2 * folded, serial=(swaps + 2 * folded) * nbytes, sent=one_way, received=one_way)


def halving_doubling_all_reduce(nbytes: float, ranks: int) -> Cost:
    """Rabenseifner's: swap halves of halves, then the way back. If n is no power of two, the buffer twice more."""
    _check(nbytes, ranks)
    swaps, folded = _core(ranks)
    share = 2 * (1 - 2**-swaps) * nbytes
    one_way = share + folded * nbytes
    return Cost(steps=2 * (swaps + folded), serial=share + 2 * folded * nbytes, sent=one_way, received=one_way)


def hierarchical_all_reduce(nbytes: float, ranks: int, size: int) -> tuple[Cost, Cost]:
    """Inside groups of `size` neighbours, and across them: rings on both levels, with links of their own.

    Errors: ValueError for groups that do not fit.
    """
    _check(nbytes, ranks)
    if size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks do not split into groups of {size}; use a divisor of {ranks}")
    inside = reduce_scatter(nbytes, size) + all_gather(nbytes, size)
    return inside, ring_all_reduce(nbytes / size, ranks // size)


def tree_all_reduce(nbytes: float, ranks: int) -> Cost:
    """NCCL's: sums go up a binary tree, the result comes down; two trees, half of the buffer each, in small pieces.

    A rank inside one tree is a leaf of the other: it sends a half up, two halves down, and one up as a leaf. Pieces are
    taken to be so small that filling the pipeline costs only the steps. Sanders, Speck and Träff 2009,
    doi:10.1016/j.parco.2009.09.001; in NCCL since 2.4,
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/
    """
    _check(nbytes, ranks)
    carried = 2 * nbytes if ranks > 1 else 0.0
    return Cost(steps=2 * ceil(log2(ranks)), serial=carried, sent=carried, received=carried)


ALL_REDUCES: dict[str, Callable[[float, int], Cost]] = {
    "naive": parameter_server,
    "binomial tree": binomial_all_reduce,
    "ring": ring_all_reduce,
    "recursive doubling": recursive_doubling_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
}


def all_reduce_seconds(nbytes: float, ranks: int, link: Link) -> float:
    """What the faster of ring and tree takes, as NCCL chooses: the ring for long messages, the tree for many ranks."""
    ring, tree = ring_all_reduce(nbytes, ranks), tree_all_reduce(nbytes, ranks)
    return min(ring.seconds(link), tree.seconds(replace(link, latency=link.slowest_hop)))


# ---- its relatives ---------------------------------------------------------------------------------------------------


def reduce_scatter(nbytes: float, ranks: int) -> Cost:
    """Around a ring; nbytes is the whole buffer, each rank keeps 1/n of it."""
    return _ring(nbytes, ranks)


def all_gather(nbytes: float, ranks: int) -> Cost:
    """Around a ring; nbytes is the whole buffer, each rank brings 1/n of it."""
    return _ring(nbytes, ranks)


def all_to_all(nbytes: float, ranks: int) -> Cost:
    """Pairwise; nbytes is the whole buffer of a rank, of which it sends 1/n to every other one."""
    return _ring(nbytes, ranks)


def broadcast(nbytes: float, ranks: int) -> Cost:
    """Binomial tree: the ranks that have the buffer double with each step."""
    _check(nbytes, ranks)
    steps = _log(ranks)
    return Cost(steps=steps, serial=steps * nbytes, sent=steps * nbytes, received=nbytes if ranks > 1 else 0.0)


def reduce(nbytes: float, ranks: int) -> Cost:
    """The same tree, upwards: the root receives most."""
    _check(nbytes, ranks)
    steps = _log(ranks)
    return Cost(steps=steps, serial=steps * nbytes, sent=nbytes if ranks > 1 else 0.0, received=steps * nbytes)


def scatter_all_gather_broadcast(nbytes: float, ranks: int) -> Cost:
    """For long messages: the root deals 1/n to each rank down a tree, then the pieces go around a ring."""
    dealt = max((min(2**k, ranks - 2**k) for k in range(_log(ranks))), default=0) / ranks * nbytes
    part = nbytes * (ranks - 1) / ranks
    return Cost(steps=_log(ranks), serial=part, sent=part, received=dealt) + all_gather(nbytes, ranks)


def barrier(ranks: int) -> Cost:
    """Dissemination; a message is one byte, because an empty one cannot be sent everywhere."""
    steps = _log(ranks)
    return Cost(steps=steps, serial=steps, sent=steps, received=steps)


# ---- links -----------------------------------------------------------------------------------------------------------


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


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """nccl-tests' "algbw", bytes/s: size / time. Errors: ValueError for a time that is not positive."""
    if seconds <= 0:
        raise ValueError(f"{seconds} s is no duration; measure longer")
    return nbytes / seconds


def bus_bandwidth(nbytes: float, seconds: float, ranks: int, op: str = "all_reduce") -> float:
    """nccl-tests' "busbw": the rate of the links, bytes/s, behind a collective that took so long.

    Errors: ValueError for an operation that is none of `BUS_FACTORS`, or a time that is not positive.
    """
    _check(nbytes, ranks)
    if op not in BUS_FACTORS:
        raise ValueError(f"nccl-tests gives no factor for {op!r}; known: {', '.join(BUS_FACTORS)}")
    return algorithm_bandwidth(nbytes, seconds) * BUS_FACTORS[op](ranks)


def _ring(nbytes: float, ranks: int) -> Cost:
    _check(nbytes, ranks)
    part = nbytes * (ranks - 1) / ranks
    return Cost(steps=ranks - 1, serial=part, sent=part, received=part)


def _log(ranks: int) -> int:
    """ceil(log2(ranks)), exactly."""
    _check(0, ranks)
    return (int(ranks) - 1).bit_length()


def _core(ranks: int) -> tuple[int, int]:
    """log2 of the largest power of two among so many ranks, and 1 if ranks are left over, else 0."""
    swaps = int(ranks).bit_length() - 1
    return swaps, int(ranks > 2**swaps)


def _check(nbytes: float, ranks: int) -> None:
    if ranks < 1 or ranks != int(ranks):
        raise ValueError(f"{ranks} ranks cannot talk; use a whole number of at least 1")
    if nbytes < 0:
        raise ValueError(f"a buffer of {nbytes} bytes does not exist; use at least 0")
