"""Scaling: what more ranks gain at a fixed global batch or a fixed batch per rank.

Amdahl 1967 (doi:10.1145/1465482.1465560): the part that does not shrink limits the speed-up. Here
it is the update and the all-reduce. Gustafson 1988 (doi:10.1145/42411.42415): let the work grow
with the ranks.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from shardlab.files.arguments import Count, checked

from .. import step
from ..facts.network import Cluster
from ..step import Run, Step, axes
from . import overlap


@checked
def strong(
    run: Run, ranks: Iterable[Count], clusters: Callable[[int], Cluster] | None = None
) -> list[Step]:
    """Predict a step for each number of ranks at the run's batch, shared equally.

    Each rank computes its share at once. clusters: number of ranks -> the cluster that they fill,
    such as `lambda n: machines.cluster(name, n)`; None: run.cluster. Errors: ValueError for a
    number of ranks that does not divide the batch.
    """
    steps = []
    batch = run.batch
    for count in ranks:
        if batch % count:
            fitting = [n for n in range(1, batch + 1) if batch % n == 0]
            raise ValueError(
                f"a batch of {batch} does not split over {count} ranks; use one of {fitting}"
            )
        layout = replace(run.training.layout, dp=count)
        training = replace(
            run.training, layout=layout, microbatch=batch // count, num_microbatches=1
        )
        cluster = run.cluster if clusters is None else clusters(count)
        steps.append(step.step(replace(run, training=training, cluster=cluster)))
    return steps


@checked
def speedups(steps: list[Step]) -> list[float]:
    """Compare tokens per second with those of the first step, on one rank.

    Strong scaling: T(1) / T(n).

    Errors: ValueError where the first step is not of one rank.
    """
    if not steps or steps[0].run.training.layout.ranks != 1:
        raise ValueError(
            "a speed-up compares with one rank; let the list of steps begin with ranks=1"
        )
    return [each.tokens_per_second / steps[0].tokens_per_second for each in steps]


@checked
def without_overlap(run: Run) -> Run:
    """Return the run by a program that sends gradients when backward is over."""
    return run.by(replace(run.training.program, data_overlap=()))


@checked
def communication_share(run: Run) -> dict[str, float]:
    """Return the share of a step for which a rank waits for gradients, without and with overlap.

    "busy" is the time for which the network is busy, as a share of the step with overlap: it may be
    large and cost nothing.
    """
    hidden, late = (step.step(each) for each in (run, without_overlap(run)))
    return {
        "without overlap": late.waiting / late.seconds,
        "with overlap": hidden.waiting / hidden.seconds,
        "busy": overlap.busy_seconds(run) / hidden.seconds,
    }


@checked
def tokens_needed(run: Run) -> float:
    """Return the tokens per rank above which backward can hide the all-reduce, on many ranks.

    4 P T / F seconds of backward must cover the all-reduce's 2 g P / beta, for g bytes a gradient;
    with 16-bit gradients that is T = F / beta. Gradients that add up over microbatches have only
    the last microbatch's backward to hide behind. Without latency.
    """
    link = axes.links(run.cluster, run.training.layout)["replicas"]
    return run.training.recipe.gradients / 2 * step.step(run).rate / link.bandwidth
