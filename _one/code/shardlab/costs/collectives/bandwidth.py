"""Bandwidths that nccl-tests prints for a collective, and the link of a ring through servers."""

from collections.abc import Callable
from dataclasses import replace

from shardlab.arguments import Count, Positive, checked

from ..facts.hardware import Link

# nccl-tests multiplies size / time by these factors, so that the result depends on the links and
# not on n. The size is the larger of one rank's input and output.
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


@checked
def ring_through_servers(inside: Link, network: Link, *, gpus: Count, cards: Count) -> Link:
    """Return the link of a ring through servers of `gpus` GPUs and `cards` network cards each.

    NCCL builds a ring for each card, so all cards of a server carry one all-reduce together, up to
    the rate inside. One hop in `gpus` leaves the server, so the ring's latency is the average over
    hops, as in NCCL's tuning model (see `hardware.NCCL`). A tree is charged the network's latency
    at every level, slightly too much: some levels are inside a server.
    """
    rate = cards * network.bandwidth
    return replace(
        inside,
        name=f"{inside.name} in servers of {gpus}, {cards} x {network.name} between them",
        bandwidth=min(inside.bandwidth, rate) if gpus > 1 else rate,
        latency=((gpus - 1) * inside.latency + network.latency) / gpus,
        longest_latency=max(inside.latency, network.latency) if gpus > 1 else network.latency,
        source=f"{inside.source}; {network.source}",
    )


@checked
def algorithm_bandwidth(nbytes: float, seconds: Positive) -> float:
    """Return nccl-tests' "algbw" in bytes/s: size / time."""
    return nbytes / seconds


@checked
def bus_bandwidth(nbytes: float, seconds: Positive, ranks: Count, op: str = "all_reduce") -> float:
    """Return nccl-tests' "busbw": the bytes/s of the links behind a collective of `seconds`.

    Errors: ValueError for an operation that is not in `BUS_FACTORS`.
    """
    if op not in BUS_FACTORS:
        raise ValueError(f"nccl-tests gives no factor for {op!r}; known: {', '.join(BUS_FACTORS)}")
    return algorithm_bandwidth(nbytes, seconds) * BUS_FACTORS[op](ranks)
