"""Exercise: the roofline, which bounds a matrix product by a chip's arithmetic or by its memory.

Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785.
"""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.compute import roofline
from shardlab.costs.facts import hardware

from ..checker import Case, Exercise
from ..shared import formulas


def attainable(m: int, k: int, n: int, peak: float, bandwidth: float, element: int) -> float:
    """Compute the right answer."""
    intensity = roofline.matmul(m, k, n, element=element).intensity
    return roofline.roof([intensity], peak=peak, bandwidth=bandwidth)[0]


def reaches_the_peak(given: Mapping[str, Any]) -> bool:
    """Say whether arithmetic is the bound."""
    return bool(attainable(*given.values()) == given["peak"])


def waits(given: Mapping[str, Any]) -> bool:
    """Say whether memory is the bound."""
    return not reaches_the_peak(given)


def case(
    title: str, m: int, k: int, n: int, peak: float, bandwidth: float, element: int = 2
) -> Case:
    """Make a case of these arguments."""
    sizes = {"m": m, "k": k, "n": n}
    given = {**sizes, "peak": peak, "bandwidth": bandwidth, "element": element}
    return Case(world_size=1, title=title, given=given)


def on(name: str) -> tuple[float, float]:
    """Return a chip's peak and its memory bandwidth."""
    chip = hardware.chip(name)
    return chip.peak_flops, chip.memory_bandwidth


EXERCISE = Exercise(
    name="compute.attainable",
    compare="shardlab.costs.compute.roofline.attainable",
    points=2,
    pure=True,
    cases=[
        case("a product of numbers", 1, 1, 1, 100.0, 6.0),
        case("a matrix by a vector", 10, 10, 1, 100.0, 6.0),
        case("two matrices", 10, 10, 10, 100.0, 60.0),
        case("in fp32", 10, 10, 10, 100.0, 6.0, element=4),
        case("one token on an A100", 1, 4096, 4096, *on("A100 SXM 80 GB")),
        case("2048 tokens on an A100", 2048, 4096, 4096, *on("A100 SXM 80 GB")),
        case("64 tokens on an H100", 64, 4096, 14336, *on("H100 SXM 80 GB")),
        case("8192 tokens on an H100", 8192, 4096, 14336, *on("H100 SXM 80 GB")),
    ],
    attempt=formulas.call,
    properties={
        "a large product reaches the peak, and no more": formulas.is_number(
            attainable, reaches_the_peak
        ),
        "a thin product reaches what memory delivers": formulas.is_number(attainable, waits),
    },
)
