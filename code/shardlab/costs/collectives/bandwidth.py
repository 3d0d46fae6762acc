"""Bandwidths that nccl-tests prints for a collective."""

from collections.abc import Callable

from shardlab.files.arguments import Count, Positive, checked

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
