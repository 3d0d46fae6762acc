"""What no collective can beat, and how far from it an algorithm is.

In a step a rank can at best tell one other what it knows, so what everybody must know takes ceil(log2(n)) steps. And
what must leave some rank cannot leave it faster than its link. No algorithm need reach both at once.
Chan, Heimlich, Purkayastha and van de Geijn 2007, doi:10.1002/cpe.1206. A switch that adds is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..facts.hardware import Link
from .algorithms import BUS_FACTORS, Cost


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The least that a collective takes."""

    steps: int
    nbytes: float  # through the busiest link, in one direction

    def seconds(self, link: Link) -> float:
        """No run over such links can be faster than the larger of the two."""
        return max(self.steps * link.latency, self.nbytes / link.bandwidth)

    def distance(self, cost: Cost) -> tuple[float, float]:
        """How many times as many steps, and bytes that follow each other, an algorithm takes: (1, 1) is perfect."""
        return cost.steps / self.steps, cost.serial / self.nbytes


def lower_bound(nbytes: float, ranks: int, op: str = "all_reduce") -> Bound:
    """For `nbytes` as nccl-tests counts them. Errors: ValueError for fewer than two ranks or an unknown operation."""
    if op not in BUS_FACTORS:
        raise ValueError(f"no bound is known for {op!r}; known: {', '.join(BUS_FACTORS)}")
    if ranks < 2:  # noqa: PLR2004
        raise ValueError(f"{ranks} rank has nobody to talk to; use at least 2")
    return Bound(steps=(ranks - 1).bit_length(), nbytes=BUS_FACTORS[op](ranks) * nbytes)


def meeting(one: Cost, other: Cost, nbytes: float, link: Link) -> float | None:
    """The size in bytes at which two algorithms take equally long; None where one is faster at every size.

    Their costs are for `nbytes`; steps do not depend on the size, and bytes grow with it.
    """
    steps, serial = one.steps - other.steps, (other.serial - one.serial) / nbytes
    if steps * serial <= 0:
        return None
    return steps * link.latency * link.bandwidth / serial


def fastest(costs: Mapping[str, Cost], link: Link) -> str:
    """The name of the quickest; of equals the first."""
    return min(costs, key=lambda name: costs[name].seconds(link))
