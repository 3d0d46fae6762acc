"""The best of many predictions promises too much: how much, and which plan stays good.

Smith and Winkler 2006 (doi:10.1287/mnsc.1050.0451) call it the optimizer's curse: whoever takes
the best of many estimates takes one whose error was lucky.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from shardlab.files.arguments import Count, Positive, checked

from .. import step
from ..facts.hardware import ReachedLink
from ..facts.network import NETWORK, Cluster
from ..step import axes
from . import plans
from .plans import Plans, TrainingPlan

# The relative rates that a data sheet leaves open: from how much of what `step` assumes, to how
# much. All are drawn evenly, and independently of each other.
RELATIVE_RATES: dict[str, tuple[float, float]] = {
    # Between nodes: from half, where others use the same switches (our assumption), to the 0.96 of
    # a card that https://github.com/NVIDIA/nccl-tests/issues/119 gives, where `step` has 0.8.
    "network": (0.5, 1.2),
    # Inside a node: NCCL's own model has 0.76 to 0.82 of NVLink's rate, see `LINK_UTILISATION`.
    "inside": (0.95, 1.03),
    # `compute.kernels.MOVED` was chosen among 0.7, 0.8 and 0.9.
    "memory": (0.875, 1.125),
    # Products and attention: a tenth more or less is our assumption.
    "arithmetic": (0.9, 1.1),
}
COUNT = 20  # plans that are ranked again
ROUNDS = 40  # in which their rates are drawn


@dataclass(frozen=True, kw_only=True)
@checked
class Candidate:
    """One plan among the best, timed again and again under other rates."""

    plan: TrainingPlan
    wins: float  # share of the rounds in which it was the fastest
    behind: float  # how much slower than the fastest of a round it was, on average, as a share
    worst: float  # likewise, in its worst round


@checked
def rank(found: Plans, *, count: Count = COUNT) -> list[Candidate]:
    """Time the best plans of different degrees again under perturbed rates; the robust one first.

    That is the plan that is least behind the fastest, on average over ROUNDS. Errors: ValueError
    where nothing fits.
    """
    best = [found.best, *found.different[1:count]]
    runs = [plans.run_of(found.question, plan) for plan in best]
    links = [axes.links(run.cluster, run.training.layout) for run in runs]
    luck = random.Random(0)
    timed: list[list[float]] = []
    for _ in range(ROUNDS):
        drawn = {name: luck.uniform(*ends) for name, ends in RELATIVE_RATES.items()}
        cluster = _drawn_cluster(found.question.cluster, drawn)
        varied = [replace(run, cluster=cluster) for run in runs]
        seconds = [_seconds(*each, drawn) for each in zip(varied, links, strict=True)]
        timed.append([each / min(seconds) - 1 for each in seconds])
    candidates = [
        Candidate(
            plan=plan,
            wins=sum(not each for each in behind) / ROUNDS,
            behind=fmean(behind),
            worst=max(behind),
        )
        for plan, behind in zip(best, zip(*timed, strict=True), strict=True)
    ]
    return sorted(candidates, key=lambda each: each.behind)


def _drawn_cluster(cluster: Cluster, drawn: Mapping[str, float]) -> Cluster:
    """Return the cluster with the memory's rate, which is higher on a slower clock."""
    chip = cluster.node.chip
    memory = 1 / drawn["arithmetic"] * drawn["memory"] * chip.memory_bandwidth
    node = replace(cluster.node, chip=replace(chip, memory_bandwidth=memory))
    return replace(cluster, node=node)


def _seconds(run: step.Run, links: Mapping[str, ReachedLink], drawn: Mapping[str, float]) -> float:
    """Time a run. Slower arithmetic is a slower clock, on which other rates are higher."""
    slower = 1 / drawn["arithmetic"]
    scaled = {
        axis: _scaled(link, slower * drawn["network" if link.kind == NETWORK else "inside"])
        for axis, link in links.items()
    }
    return slower * step.step(run, scaled).seconds


def _scaled(link: ReachedLink, factor: float) -> ReachedLink:
    return replace(link, bandwidth=factor * link.bandwidth)


@checked
def broken_promise(seconds: Sequence[Positive], error: Positive) -> float:
    """Return how much longer the winner takes than promised, on average, as a share.

    Every prediction gets a normal error of its own around the true `seconds`; error: its standard
    deviation, as a share. Errors: ValueError for an error of a quarter or more, for which a
    prediction may be below 0.
    """
    if not seconds or error >= 1 / 4:
        raise ValueError(
            f"seconds={len(seconds)} of them, error={error}: give some, and an error below 0.25"
        )
    luck = random.Random(0)
    missing = []
    for _ in range(50):
        seen = [each * (1 + luck.gauss(0, error)) for each in seconds]
        winner = seen.index(min(seen))
        missing.append(seconds[winner] / seen[winner] - 1)
    return max(0.0, fmean(missing))  # few rounds may be lucky
