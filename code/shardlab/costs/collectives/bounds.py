"""Lower bounds: what no all-reduce can beat, and how far from it an algorithm is.

In one step a rank can at best inform one other rank, so what all ranks must know takes
ceil(log2(n)) steps. And what must leave a rank cannot leave it faster than its link. An algorithm
need not reach both bounds at once. Chan, Heimlich, Purkayastha and van de Geijn 2007,
doi:10.1002/cpe.1206. A switch that adds is left out, and so are messages to many ranks at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from ..facts.hardware import Link
from .algorithms import Cost
from .bandwidth import BUS_FACTORS


@dataclass(frozen=True, kw_only=True)
@checked
class Bound:
    """The minimum cost of an all-reduce."""

    steps: Count
    nbytes: Positive  # through the busiest link, in one direction

    def seconds(self, link: Link) -> float:
        """Return the larger of the two bounds: no run over such links is faster."""
        return max(self.steps * link.latency, self.nbytes / link.bandwidth)

    def distance(self, cost: Cost) -> tuple[float, float]:
        """Return an algorithm's steps and serial bytes as multiples of the bounds: (1, 1) is
        perfect.
        """
        return cost.steps / self.steps, cost.serial / self.nbytes


@checked
def lower_bound(nbytes: float, ranks: Count) -> Bound:
    """Bound an all-reduce of `nbytes`. Errors: ValueError for fewer than two ranks."""
    if ranks < 2:  # noqa: PLR2004
        raise ValueError(f"{ranks} rank needs no messages; use at least 2")
    return Bound(steps=(ranks - 1).bit_length(), nbytes=BUS_FACTORS["all_reduce"](ranks) * nbytes)


@checked
def meeting(one: Cost, other: Cost, nbytes: Positive, link: Link) -> float | None:
    """Return the size in bytes at which two algorithms take equally long; None if they never do.

    Both costs are for `nbytes`; steps do not depend on the size, bytes are proportional to it.
    """
    steps = one.steps - other.steps
    serial = (other.serial - one.serial) / nbytes
    if steps * serial <= 0:
        return None
    return steps * link.latency * link.bandwidth / serial


@checked
def fastest(costs: Mapping[str, Cost], link: Link) -> str:
    """Name the algorithm with the least seconds; the first of equals."""
    return min(costs, key=lambda name: costs[name].seconds(link))
