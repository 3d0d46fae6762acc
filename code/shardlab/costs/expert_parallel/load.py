"""Load of experts: how much more than the mean the fullest has.

All ranks wait for the rank whose experts have the most tokens, so the fullest load over the mean is
a factor on the time of experts and of their all-to-alls. Routers are learned and rarely uniform;
`arrivals` draws tokens for experts of unequal popularity, and `favours` evens them out as
DeepSeek-V3 does, by a bias without a loss (https://arxiv.org/abs/2412.19437, section 2.1.2).
"""

from collections.abc import Sequence
from functools import cache
from heapq import nlargest
from math import erf, exp, sqrt
from random import Random

from shardlab.files.arguments import Count, Positive, checked, within
from shardlab.model.experts import Experts
from shardlab.sharding.layout import listed

WIDEST, STEPS = 9.0, 1800  # of the integral over a standard normal variable
FARTHEST = 300.0  # logarithm of a favour


@checked
def imbalance(loads: Sequence[float]) -> float:
    """Divide the fullest load by the mean: 1 is even. Without any load it is 1, too."""
    if not loads:
        raise ValueError("loads=[] has no fullest; give the load of each expert or rank")
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


@checked
def expected_imbalance(experts: Experts, tokens: Count, groups: Count) -> float:
    """Return the imbalance of `groups` equal groups of experts under uniform random routing.

    tokens: of all ranks together. The load of a group of g experts has the mean m = T k g/E and the
    variance m (1 - g/E) (E - k)/(E - 1) of the hypergeometric distribution. The fullest
    group is estimated as the largest of `groups` normal variables with a fixed sum, which is
    accurate from about ten tokens for each group on. Errors: ValueError for groups that do not
    divide the experts.
    """
    mean, deviation = _load(experts, tokens, groups)
    if groups == 1:
        return 1.0
    return 1 + fullest_normal(groups) * sqrt(groups / (groups - 1)) * deviation / mean


@checked
@cache
def fullest_normal(count: Count) -> float:
    """Return the mean of the largest of `count` standard normal variables."""
    width = 2 * WIDEST / STEPS
    places = (-WIDEST + width * (step + 0.5) for step in range(STEPS))
    return sum((x > 0) - _below(x) ** count for x in places) * width


def _below(x: float) -> float:
    """Return the probability that a standard normal variable is below x."""
    return (1 + erf(x / sqrt(2))) / 2


def _load(experts: Experts, tokens: int, groups: int) -> tuple[float, float]:
    """Return the mean and the standard deviation of the load of one of `groups`."""
    count = experts.num_experts
    if count % groups:
        raise ValueError(f"{count} experts do not split into groups={groups}; use a divisor")
    mean = tokens * experts.per_token / groups
    left = (count - experts.per_token) / (count - 1) if count > 1 else 0.0
    return mean, sqrt(mean * (1 - 1 / groups) * left)


# ---- tokens drawn one by one ---------------------------------------------------------------------


@checked
def arrivals(
    tokens: Count, num_experts: Count, skew: float = 0.0, seed: int = 0
) -> list[list[float]]:
    """Draw a score of every expert for every token, such that larger ones are chosen.

    Expert i has the popularity (i + 1)^-skew. Popularity over an exponential variable makes the k
    largest scores k draws without replacement; its logarithm is the Gumbel trick (Kool et al. 2019,
    https://arxiv.org/abs/1903.06059).
    """
    random = Random(seed)
    popularity = [(expert + 1) ** -skew for expert in range(num_experts)]
    return [[p / random.expovariate(1.0) for p in popularity] for _ in range(tokens)]


@checked
def chosen(
    scores: Sequence[Sequence[float]], per_token: Count, favour: Sequence[float] | None = None
) -> list[list[int]]:
    """List the experts of each token: those with the largest scores, times their favour.

    Errors: ValueError for fewer scores than experts to choose, or another number of favours.
    """
    wanted = {len(row) for row in scores}
    if favour is not None:
        wanted.add(len(favour))
    if len(wanted) > 1 or min(wanted, default=per_token) < per_token:
        raise ValueError(
            f"scores of {listed(sorted(wanted))} experts cannot give per_token={per_token}; "
            "give every token a score for every expert"
        )
    ranked = scores
    if favour is not None:
        ranked = [[x * factor for x, factor in zip(row, favour, strict=True)] for row in scores]
    return [nlargest(per_token, range(len(row)), key=row.__getitem__) for row in ranked]


@checked
def loads(routes: Sequence[Sequence[int]], num_experts: Count) -> list[int]:
    """Count the tokens of every expert. Errors: ValueError for an expert that does not exist."""
    counts = [0] * num_experts
    for row in routes:
        for expert in row:
            within("routes", expert, num_experts)
            counts[expert] += 1
    return counts


@checked
def favours(
    scores: Sequence[Sequence[float]], per_token: Count, *, steps: Count, step: Positive
) -> list[float]:
    """Learn a favour for each expert: after each batch it falls where the load exceeds the mean.

    Elsewhere it rises, by the factor e^step; its logarithm is DeepSeek-V3's bias, for scores in
    logarithms. Only the choice depends on it, not the weight of an expert's output.
    """
    if steps * step > FARTHEST:
        raise ValueError(f"{steps} steps of step={step} grow beyond e^{FARTHEST:.0f}; use fewer")
    count = len(scores[0]) if scores else 0
    learned = [1.0] * count
    for _ in range(steps):
        held = loads(chosen(scores, per_token, learned), count)
        mean = sum(held) / max(1, count)
        learned = [
            old * exp(-step if load > mean else step)
            for old, load in zip(learned, held, strict=True)
        ]
    return learned
