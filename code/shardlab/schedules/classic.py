"""Schedules with whole backwards: one microbatch at a time, GPipe, 1F1B and interleaved 1F1B.

Every function returns what one stage does. In the pictures a backward takes as long as a forward.
"""

from collections.abc import Iterator, Sequence

from shardlab.files.arguments import Count, checked, within
from shardlab.sharding.deal import deal

from .action import Action


@checked
def naive(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage without a pipeline: the next microbatch starts when this one is back.

    3 stages, 2 microbatches:

        stage 0: F0             B0 F1             B1
        stage 1:    F0       B0       F1       B1
        stage 2:       F0 B0             F1 B1
    """
    within("stage", stage, num_stages)
    return [Action(kind, m) for m in range(num_microbatches) for kind in "FB"]


@checked
def gpipe(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of GPipe: all forwards, then all backwards.

    Huang et al. 2019, https://arxiv.org/abs/1811.06965, Figure 2c.

    3 stages, 3 microbatches:

        stage 0: F0 F1 F2             B0 B1 B2
        stage 1:    F0 F1 F2       B0 B1 B2
        stage 2:       F0 F1 F2 B0 B1 B2

    In the paper's figure the last microbatch turns back first; time and memory are the same.
    """
    within("stage", stage, num_stages)
    return [Action(kind, m) for kind in "FB" for m in range(num_microbatches)]


@checked
def one_f_one_b(stage: int, num_stages: Count, num_microbatches: Count) -> list[Action]:
    """Order one stage of 1F1B (PipeDream-Flush): every backward as soon as possible.

    Narayanan et al. 2020, https://arxiv.org/abs/2006.09503.

    4 stages, 4 microbatches:

        stage 0: F0 F1 F2 F3          B0    B1    B2    B3
        stage 1:    F0 F1 F2       B0 F3 B1    B2    B3
        stage 2:       F0 F1    B0 F2 B1 F3 B2    B3
        stage 3:          F0 B0 F1 B1 F2 B2 F3 B3
    """
    within("stage", stage, num_stages)
    forwards = [Action("F", m) for m in range(num_microbatches)]
    backwards = [Action("B", m) for m in range(num_microbatches)]
    return alternate(forwards, backwards, warmup=num_stages - 1 - stage)


@checked
def interleaved(
    stage: int, num_stages: Count, num_microbatches: Count, num_chunks: Count = 2
) -> list[Action]:
    """Order one stage of interleaved 1F1B: a group of microbatches passes all chunks in turn.

    Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2.2. The paper's groups have
    num_stages microbatches, which must divide their number. Here groups are as equal as possible,
    and no smaller than num_stages where there are enough microbatches.

    2 stages, 2 microbatches, 2 chunks:

        stage 0: F0   F1   F0.1 F1.1      B0.1      B1.1 B0   B1
        stage 1:      F0   F1   F0.1 B0.1 F1.1 B1.1 B0   B1
    """
    within("stage", stage, num_stages)
    groups = groups_of(num_microbatches, num_stages)
    forwards = []
    for group in groups:
        for chunk in range(num_chunks):
            forwards += [Action("F", m, chunk) for m in group]
    last = num_chunks - 1
    backwards = [Action("B", forward.microbatch, last - forward.chunk) for forward in forwards]
    after = num_stages - 1 - stage
    return alternate(forwards, backwards, warmup=2 * after + last * len(groups[0]))


@checked
def groups_of(number: int, least: Count) -> list[range]:
    """Cut range(number) into as many groups of at least `least` as there can be.

    The groups are as equal as possible, the larger ones first: 7 in groups of at least 3 are
    [range(0, 4), range(4, 7)]. Fewer than `least` form one group.
    """
    return list(deal(number, max(1, number // least)))


@checked
def group_sizes(number: int, least: Count) -> Iterator[int]:
    """Yield the size of each of these groups; only as many as are asked for are computed."""
    return map(len, deal(number, max(1, number // least)))


@checked
def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Order `warmup` forwards, then forwards and backwards in turn, then the last backwards."""
    warmup = min(warmup, len(forwards))
    order = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    steady = len(forwards) - warmup
    return [*order, *backwards[steady:]]
