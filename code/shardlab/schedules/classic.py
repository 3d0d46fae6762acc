"""Schedules with whole backwards: one microbatch at a time, GPipe, 1F1B and interleaved 1F1B.

Every function returns what one stage does. In the pictures a backward takes as long as a forward.
"""

from collections.abc import Sequence
from itertools import pairwise

from .action import Action


def naive(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """Model parallelism without a pipeline: a microbatch goes through all stages and back before the next one starts.

    3 stages, 2 microbatches:

        stage 0: F0             B0 F1             B1
        stage 1:    F0       B0       F1       B1
        stage 2:       F0 B0             F1 B1
    """
    return [Action(kind, m) for m in range(num_microbatches) for kind in "FB"]


def gpipe(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """GPipe: all forwards, then all backwards (Huang et al. 2019, https://arxiv.org/abs/1811.06965, Figure 2c).

    3 stages, 3 microbatches:

        stage 0: F0 F1 F2             B0 B1 B2
        stage 1:    F0 F1 F2       B0 B1 B2
        stage 2:       F0 F1 F2 B0 B1 B2

    In the paper's figure the last microbatch turns back first; time and memory are the same.
    """
    return [Action(kind, m) for kind in "FB" for m in range(num_microbatches)]


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """1F1B, also PipeDream-Flush: every backward as soon as possible (https://arxiv.org/abs/2006.09503).

    4 stages, 4 microbatches:

        stage 0: F0 F1 F2 F3          B0    B1    B2    B3
        stage 1:    F0 F1 F2       B0 F3 B1    B2    B3
        stage 2:       F0 F1    B0 F2 B1 F3 B2    B3
        stage 3:          F0 B0 F1 B1 F2 B2 F3 B3
    """
    forwards = [Action("F", m) for m in range(num_microbatches)]
    backwards = [Action("B", m) for m in range(num_microbatches)]
    return alternate(forwards, backwards, num_stages - 1 - stage)


def interleaved(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 2) -> list[Action]:
    """Interleaved 1F1B (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2.2).

    Microbatches go in groups, each through all chunks of a stage. The paper has groups of num_stages, and asks for a
    number of microbatches that they divide. Here groups are as equal as possible and not smaller than that.

    2 stages, 2 microbatches, 2 chunks:

        stage 0: F0   F1   F0.1 F1.1      B0.1      B1.1 B0   B1
        stage 1:      F0   F1   F0.1 B0.1 F1.1 B1.1 B0   B1
    """
    groups = groups_of(num_microbatches, num_stages)
    forwards = [Action("F", m, chunk) for group in groups for chunk in range(num_chunks) for m in group]
    backwards = [Action("B", m, num_chunks - 1 - chunk) for _, m, chunk, _ in forwards]
    warmup = 2 * (num_stages - 1 - stage) + (num_chunks - 1) * len(groups[0])
    return alternate(forwards, backwards, warmup)


def groups_of(number: int, least: int) -> list[range]:
    """0, 1, ... number - 1 in groups of at least so many, as small and as equal as possible, the larger ones first."""
    count = max(1, number // least)
    share, more = divmod(number, count)
    starts = [group * share + min(group, more) for group in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """So many forwards; then one forward and one backward in turn; then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    pairs = zip(forwards[warmup:], backwards, strict=False)
    steady = [action for pair in pairs for action in pair]
    return [*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :]]
