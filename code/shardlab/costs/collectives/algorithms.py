"""What collectives cost: steps, bytes and seconds of each algorithm in the alpha-beta model.

A message of n bytes takes alpha + n/beta seconds: a latency and a bandwidth (Hockney 1994).
Sources: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521; Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002, who prove that, where only ranks add, the busiest rank of no
algorithm sends less than that of the ring; a switch that adds (NVLink SHARP) can send less. The
time of additions is left out: memory is faster than links.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, log2

from shardlab.files.arguments import Count, checked

from ..facts.hardware import Link
from ..units import us

# Seconds of the shortest all-reduce inside a switch that adds:
# https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc
SWITCH_STEP = 25 * us


@dataclass(frozen=True, kw_only=True)
@checked
class Cost:
    """The cost of one collective. Bytes are of one direction."""

    steps: int  # messages that must follow one another
    serial: float  # bytes that must follow one another
    sent: float  # bytes leaving the rank that sends most
    received: float  # bytes entering the rank that receives most

    def __add__(self, after: "Cost") -> "Cost":
        """Run one after the other, where the same rank is the busiest in both."""
        return Cost(
            steps=self.steps + after.steps,
            serial=self.serial + after.serial,
            sent=self.sent + after.sent,
            received=self.received + after.received,
        )

    @property
    def busiest_link(self) -> float:
        """Bytes through the busiest link, in its busier direction.

        Every rank has one link to a switch.
        """
        return max(self.sent, self.received)

    def seconds(self, link: Link) -> float:
        """Return the time when every rank has `link` to itself: steps * alpha + serial / beta."""
        return self.steps * link.latency + self.serial / link.bandwidth


# ---- all-reduce ----------------------------------------------------------------------------------


@checked
def naive_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce naively: one rank receives every buffer and sends the result back to each rank.

    Everything crosses that rank's link, so the time grows with n (Li et al. 2014, OSDI, spread the
    server over many machines for this reason). A separate server would carry n instead of n-1
    buffers each way.
    """
    others = ranks - 1
    one_way = others * nbytes
    return Cost(steps=2 * others, serial=2 * one_way, sent=one_way, received=one_way)


@checked
def binomial_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce up a binomial tree and down: the whole buffer at each of 2 ceil(log2(n)) steps."""
    steps = _log(ranks)
    one_way = steps * nbytes
    return Cost(steps=2 * steps, serial=2 * one_way, sent=one_way, received=one_way)


@checked
def ring_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce by reduce-scatter and all-gather on a ring: a rank sends 2(n-1)/n of the
    buffer.
    """
    return reduce_scatter(nbytes, ranks) + all_gather(nbytes, ranks)


@checked
def recursive_doubling_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce by swapping the whole buffer with partners at distance 1, 2, 4, ...

    If n is not a power of two, two more steps are needed.
    """
    swaps, folded = _core(ranks)
    steps = swaps + 2 * folded
    one_way = (swaps + folded) * nbytes
    return Cost(steps=steps, serial=steps * nbytes, sent=one_way, received=one_way)


@checked
def halving_doubling_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce as Rabenseifner does: swap halves of halves, then go the way back.

    If n is not a power of two, the buffer travels twice more.
    """
    swaps, folded = _core(ranks)
    share = 2 * (1 - 2**-swaps) * nbytes
    one_way = share + folded * nbytes
    serial = share + 2 * folded * nbytes
    return Cost(steps=2 * (swaps + folded), serial=serial, sent=one_way, received=one_way)


@checked
def two_tree_all_reduce(nbytes: float, ranks: Count) -> Cost:
    """All-reduce as NCCL's trees do: sums go up a binary tree, the result comes down.

    Two trees carry half of the buffer each, in small pieces. An inner rank of one tree is a leaf of
    the other: it sends one half up, two halves down, and one up as a leaf. Pieces are assumed to be
    so small that filling the pipeline costs only the steps. Sanders, Speck and Träff 2009,
    doi:10.1016/j.parco.2009.09.001; in NCCL since 2.4,
    https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/
    """
    carried = 2 * nbytes if ranks > 1 else 0.0
    return Cost(steps=2 * ceil(log2(ranks)), serial=carried, sent=carried, received=carried)


ALL_REDUCES: dict[str, Callable[[float, int], Cost]] = {
    "naive": naive_all_reduce,
    "binomial tree": binomial_all_reduce,
    "ring": ring_all_reduce,
    "recursive doubling": recursive_doubling_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
}


@checked
def all_reduce_seconds(
    nbytes: float, ranks: Count, link: Link, *, collectives: str = "ring"
) -> float:
    """Time the faster of ring and tree, as NCCL chooses.

    The ring is faster for long messages, the tree for many ranks. collectives: see
    `program.COLLECTIVES`; with "switch", a link whose switch adds may be faster than both.
    """
    ring = ring_all_reduce(nbytes, ranks)
    tree = two_tree_all_reduce(nbytes, ranks)
    slowest = replace(link, latency=link.slowest_hop)
    seconds = min(ring.seconds(link), tree.seconds(slowest))
    if collectives == "switch" and link.adds:
        added = switch_share(ranks) * nbytes / (link.adds * link.bandwidth)
        seconds = min(seconds, SWITCH_STEP + added)
    return seconds


@checked
def switch_share(ranks: Count) -> float:
    """Return the share of a buffer that every rank sends where a switch adds, and receives."""
    return (ranks + 1) / ranks


# ---- other collectives ---------------------------------------------------------------------------


@checked
def reduce_scatter(nbytes: float, ranks: Count) -> Cost:
    """Reduce-scatter on a ring; nbytes is the whole buffer, of which each rank keeps 1/n."""
    return _ring(nbytes, ranks)


@checked
def all_gather(nbytes: float, ranks: Count) -> Cost:
    """All-gather on a ring; nbytes is the whole buffer, to which each rank contributes 1/n."""
    return _ring(nbytes, ranks)


@checked
def all_to_all(nbytes: float, ranks: Count) -> Cost:
    """Exchange with all ranks at once, see `at_once`.

    nbytes: a rank's whole buffer, of which it sends 1/n to every other rank.
    """
    return at_once(nbytes * (ranks - 1) / ranks)


@checked
def at_once(sent: float) -> Cost:
    """Count one latency for all that a rank sends to others: no message waits for another.

    So NCCL does an all-to-all, whose messages are one group that progresses together:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html. What each message
    costs its sender is left out. In rounds, as the plan `pairwise_all_to_all`, n - 1 latencies
    follow one another.
    """
    return Cost(steps=int(sent > 0), serial=sent, sent=sent, received=sent)


def _ring(nbytes: float, ranks: int) -> Cost:
    part = nbytes * (ranks - 1) / ranks
    return Cost(steps=ranks - 1, serial=part, sent=part, received=part)


def _log(ranks: int) -> int:
    """Return ceil(log2(ranks)), exactly."""
    return (ranks - 1).bit_length()


def _core(ranks: int) -> tuple[int, int]:
    """Return log2 of the largest power of two up to `ranks`, and whether ranks are left over."""
    swaps = ranks.bit_length() - 1
    return swaps, int(ranks > 2**swaps)
