"""Scaling: what more ranks gain at a fixed global batch or a fixed batch per rank.

Amdahl 1967 (doi:10.1145/1465482.1465560): the part that does not shrink limits the speed-up. Here
it is the update and the all-reduce. Gustafson 1988 (doi:10.1145/42411.42415): let the work grow
with the ranks.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from shardlab.arguments import Count, checked

from ..facts.hardware import Link
from .run import DataParallelRun, DataParallelStep, step


@checked
def strong(
    run: DataParallelRun,
    global_batch: Count,
    ranks: Iterable[Count],
    links: Callable[[int], Link] | None = None,
) -> list[DataParallelStep]:
    """Predict a step for each number of ranks at a fixed global batch, shared equally.

    links: number of ranks -> the link that joins them, such as `lambda n: machines.network(name,
    n)`; None: run.link. Errors: ValueError for a number of ranks that does not divide the global
    batch.
    """
    steps = []
    for count in ranks:
        if global_batch % count:
            fitting = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
            raise ValueError(
                f"a global batch of {global_batch} does not split over {count} ranks; "
                f"use one of {fitting}"
            )
        link = run.link if links is None else links(count)
        one = replace(run, ranks=count, batch_per_rank=global_batch // count, link=link)
        steps.append(step(one))
    return steps


@checked
def speedups(steps: list[DataParallelStep]) -> list[float]:
    """Compare tokens per second with those of the first step, on one rank.

    Strong scaling: T(1) / T(n).

    Errors: ValueError where the first step is not of one rank.
    """
    if not steps or steps[0].run.ranks != 1:
        raise ValueError(
            "a speed-up compares with one rank; let the list of steps begin with ranks=1"
        )
    return [step.tokens_per_second / steps[0].tokens_per_second for step in steps]


@checked
def communication_share(run: DataParallelRun) -> dict[str, float]:
    """Return the share of a step for which a rank waits for gradients, without and with overlap.

    "busy" is the time for which the network is busy, as a share of the step with overlap: it may be
    large and cost nothing.
    """
    without = step(replace(run, overlap=False))
    hidden = step(replace(run, overlap=True))
    return {
        "without overlap": without.exposed / without.seconds,
        "with overlap": hidden.exposed / hidden.seconds,
        "busy": hidden.communication / hidden.seconds,
    }
