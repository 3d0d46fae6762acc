"""A GPU with two engines holds the weights twice for one moment, and the cache must not be there then."""

from itertools import pairwise

import pytest

from shardlab.costs.facts import hardware
from shardlab.costs.generation.moments import SharedGPU
from shardlab.costs.published.engines import WOKEN
from shardlab.costs.units import GiB

MEASURED = {row.moment: row.held for row in WOKEN}
WHOLE = 2 * 32.76e9  # Qwen 32B in 16 bits, on two ranks, with 0.9 of an H200
GPU = SharedGPU(
    trainer={"parameters": 0.0, "optimizer": 30 * GiB},
    weights=WHOLE / 2,
    cache=0.9 * hardware.chip("H200 SXM 141 GB").memory - WHOLE / 2,
    gathered=WHOLE,
    beside=MEASURED["offload the states"],
)
HELD = {moment: sum(parts.values()) for moment, parts in GPU.moments().items()}


def test_each_moment_brings_or_drops_what_was_measured():
    """The trainer was empty, and its whole model came for the hand-over."""
    before_the_cache = list(HELD)[1:5]
    assert list(HELD)[1:6] == list(MEASURED)[:5]
    ours, theirs = ([held[each] for each in before_the_cache] for held in (HELD, MEASURED))
    steps = [[after - before for before, after in pairwise(each)] for each in (ours, theirs)]
    assert steps[0] == pytest.approx(steps[1], rel=0.02)
    assert steps[0] == pytest.approx([30.5 * GiB, 61.0 * GiB, -61.0 * GiB], rel=0.002)
    assert HELD["wake the cache"] == pytest.approx(MEASURED["wake the cache"], rel=0.1)


def test_waking_everything_at_once_costs_the_gathered_weights():
    extra = MEASURED["at once"] - MEASURED["wake the cache"]
    assert GPU.peak_at_once - GPU.peak == pytest.approx(extra, rel=0.02)
    assert GPU.peak == HELD["generate"]


def test_a_trainer_may_hold_more_than_a_generator():
    large = SharedGPU(trainer={"parameters": 2.0, "optimizer": 12.0}, weights=1, cache=3, working=1)
    assert [sum(each.values()) for each in large.moments().values()] == [14, 2, 3, 3, 1, 4, 5]
    assert (large.peak, large.peak_at_once) == (14, 14)
