"""Exercise: who reads which sample."""

import operator
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding, Judge

SHOWN = 4  # samples of a shard that a report lists
Shards = list[list[int]]

STARTER = '''\
def my_shard(num_samples, rank, world_size):
    """The samples that this rank reads: a range, or a list of whole numbers."""
    return range(num_samples)  # every rank reads everything: mend it
'''


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> list[list[int] | str]:
    """What each rank of the case gets: samples, or in words what was returned instead."""
    return [_listed(function(case.given, each, case.world_size), case.given) for each in range(case.world_size)]


def _listed(samples: Any, num_samples: int) -> list[int] | str:
    try:
        return [operator.index(sample) for sample in islice(samples, num_samples + 1)]  # some iterators never end
    except TypeError:
        return f"{samples!r:.60}, a {type(samples).__name__}"


def are_samples(case: Case, seen: list[Any]) -> Finding | None:
    for rank, shard in enumerate(seen[0]):
        if isinstance(shard, str) or not set(shard) <= set(range(case.given)):
            return Finding(f"{_given(case)}, rank={rank}", f"whole numbers from 0 to {case.given - 1}", _brief(shard))
    return None


def judge(is_wrong: Callable[[Shards, int], bool], expected: str) -> Judge:
    """Judges the shards of all ranks together; what is no shard counts as an empty one."""

    def judge_shards(case: Case, seen: list[Any]) -> Finding | None:
        shards = [[] if isinstance(shard, str) else shard for shard in seen[0]]
        if not is_wrong(shards, case.given):
            return None
        told = "; ".join(f"rank {rank}: {_brief(shard)}" for rank, shard in enumerate(seen[0]))
        return Finding(_given(case), expected, told)

    return judge_shards


def _overlap(shards: Shards, _: int) -> bool:
    return any(count > 1 for count in Counter(sample for shard in shards for sample in shard).values())


def _miss(shards: Shards, num_samples: int) -> bool:
    return not set(range(num_samples)) <= {sample for shard in shards for sample in shard}


def _uneven(shards: Shards, _: int) -> bool:
    sizes = [len(shard) for shard in shards]
    return max(sizes) - min(sizes) > 1


def _given(case: Case) -> str:
    return f"num_samples={case.given}, world_size={case.world_size}"


def _brief(shard: list[int] | str) -> str:
    long = not isinstance(shard, str) and len(shard) > SHOWN
    return f"{len(shard)} samples, {shard[0]} to {shard[-1]}" if long else str(shard)


EXERCISE = Exercise(
    name="data_parallel.shard",
    prompt="Deal num_samples samples to world_size ranks: each sample to one rank, shares equal to within one.",
    starter=STARTER,
    hint="divmod(num_samples, world_size) says how many every rank gets, and how many ranks must take one more.",
    points=1,
    pure=True,
    cases=[
        Case(world_size=world_size, title=f"{num_samples} sample{'s' * (num_samples > 1)}", given=num_samples)
        for world_size, num_samples in [(1, 1), (1, 4), (2, 2), (2, 3), (3, 3), (3, 7), (4, 5), (4, 10), (4, 4000)]
    ],
    attempt=attempt,
    properties={
        "returns numbers of samples": are_samples,
        "no sample is read twice": judge(_overlap, "every sample on one rank only"),
        "no sample is left out": judge(_miss, "every sample on some rank"),
        "shares differ by at most one sample": judge(_uneven, "shares that differ by at most one sample"),
    },
)
