"""Exercise: which samples a rank reads, by their numbers."""

import operator
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from shardlab import comm
from shardlab.costs import units

from ..checker import Case, Dependent, Exercise, Finding, describe

SHOWN = 4  # samples of a shard that a report lists
Shards = list[list[int]]


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[list[int] | str]:
    """Return what each rank of the case gets: samples, or a description of what came instead."""
    ranks = range(case.world_size)
    return [_listed(function(case.given, each, case.world_size), case.given) for each in ranks]


def _listed(samples: Any, num_samples: int) -> list[int] | str:
    try:
        some = islice(samples, num_samples + 1)  # an iterator may never end
        return [operator.index(sample) for sample in some]
    except TypeError:
        return describe(samples)


def are_samples(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that each rank gets numbers of samples that exist."""
    for rank, shard in enumerate(observed[0]):
        if isinstance(shard, str) or not set(shard) <= set(range(case.given)):
            expected = f"whole numbers from 0 to {case.given - 1}"
            return Finding(f"{_given(case)}, rank={rank}", expected, _brief(shard))
    return None


def judge(is_wrong: Callable[[Shards, int], bool], expected: str) -> Dependent:
    """Judge the shards of all ranks together; what is no shard counts as an empty one."""

    @Dependent
    def judge_shards(case: Case, observed: list[Any]) -> Finding | None:
        shards = [[] if isinstance(shard, str) else shard for shard in observed[0]]
        if not is_wrong(shards, case.given):
            return None
        shown = [f"rank {rank}: {_brief(shard)}" for rank, shard in enumerate(observed[0])]
        return Finding(_given(case), expected, "; ".join(shown))

    return judge_shards


def _overlap(shards: Shards, num_samples: int) -> bool:
    counts = Counter(sample for shard in shards for sample in shard)
    return any(count > 1 for count in counts.values())


def _miss(shards: Shards, num_samples: int) -> bool:
    return not set(range(num_samples)) <= {sample for shard in shards for sample in shard}


def _uneven(shards: Shards, num_samples: int) -> bool:
    sizes = [len(shard) for shard in shards]
    return max(sizes) - min(sizes) > 1


def _given(case: Case) -> str:
    return f"num_samples={case.given}, world_size={case.world_size}"


def _brief(shard: list[int] | str) -> str:
    if isinstance(shard, str) or len(shard) <= SHOWN:
        return str(shard)
    return f"{len(shard)} samples, {shard[0]} to {shard[-1]}"


SIZES = [(1, 1), (1, 4), (2, 2), (2, 3), (3, 3), (3, 7), (4, 5), (4, 10), (4, 4000)]
EXERCISE = Exercise(
    name="data_parallel.shard",
    compare="shardlab.ranks.data_parallel.sampler.shard",
    points=1,
    pure=True,
    cases=[
        Case(world_size=ranks, title=units.counted(count, "sample"), given=count)
        for ranks, count in SIZES
    ],
    attempt=attempt,
    properties={
        "returns numbers of samples": are_samples,
        "no sample is read twice": judge(_overlap, "every sample on one rank only"),
        "no sample is left out": judge(_miss, "every sample on some rank"),
        "shares differ by at most one sample": judge(
            _uneven, "shares that differ by at most one sample"
        ),
    },
)
