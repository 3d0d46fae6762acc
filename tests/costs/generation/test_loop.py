"""A step in turn adds both engines and their tails; side by side it is the slower, on older weights."""

import math
import random
from statistics import fmean

import pytest

from shardlab.costs.generation.loop import EngineLoop, full_slots, staleness
from shardlab.costs.published.engines import PLACEMENTS


def test_slots_are_full_until_their_text_ends():
    assert full_slots([1, 3], 2) == 4 / 6
    assert full_slots([4, 1, 1, 2], 2) == 8 / 8  # beside the 4, one after the other
    assert full_slots([2], 4) == 1 / 4
    with pytest.raises(ValueError, match="give the tokens of at least one"):
        full_slots([], 2)


@pytest.mark.parametrize(("texts", "spread", "share"), [(16, 0.3, 0.63), (128, 0.6, 0.29), (1024, 1.0, 0.10)])
def test_the_longest_of_many_texts_leaves_most_slots_empty(texts, spread, share):
    """Log-normal lengths; spread: deviation over mean."""
    draw, sigma = random.Random(0), math.sqrt(math.log(1 + spread**2))
    lengths = [[round(1000 * draw.lognormvariate(0, sigma)) or 1 for _ in range(texts)] for _ in range(100)]
    assert fmean(full_slots(each, texts) for each in lengths) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("slots", "batch", "spread"), [(8, 8, 0), (12, 4, 9), (30, 4, 25), (3, 6, 2)])
@pytest.mark.counted("trainer_generator", "how stale texts are, played over 4,000 steps")
def test_staleness_is_the_texts_on_their_way_over_those_of_a_step(slots, batch, spread):
    """Played: a text that ends waits for a whole batch; a step then makes the next weights at once."""
    draw, version, waiting, ages = random.Random(1), 0, [], []

    def begin():
        return [30 + draw.randint(-spread, spread), version]

    running = [begin() for _ in range(slots)]
    while version < 4000:
        for text in running:
            text[0] -= 1
        for n, text in enumerate(running):
            if text[0] == 0:
                waiting.append(text)
                running[n] = begin()
            if len(waiting) == batch:
                ages += [version - began for _, began in waiting]
                waiting, version = [], version + 1
    assert fmean(ages) == pytest.approx(staleness(slots, batch), rel=0.02)


LOOP = EngineLoop(generating=40, training=60, gpus=10, full=0.4, switch=2, hand_over=1)


def test_a_step_in_turn_adds_and_side_by_side_waits_for_the_slower():
    assert LOOP.same_gpus == 40 / 0.4 / 10 + 60 / 10 + 2
    assert LOOP.lanes(4) == {"generator": 40 / 4 + 1, "trainer": 10}
    assert LOOP.apart(4) == 11
    assert LOOP.apart(5) == 12
    assert LOOP.best == 4


def test_without_tails_and_switches_nothing_is_won_apart():
    even = EngineLoop(generating=40, training=60, gpus=10)
    assert even.best == 4
    assert even.apart(4) == even.same_gpus == 10


def test_both_engines_need_a_gpu():
    with pytest.raises(ValueError, match="generators=10 leave no GPU of gpus=10"):
        LOOP.lanes(10)
    with pytest.raises(ValueError, match="generators=1 leave no GPU of gpus=1"):
        _ = EngineLoop(generating=1, training=1, gpus=1).best


@pytest.mark.parametrize("row", PLACEMENTS, ids=lambda row: row.name)
def test_published_steps_are_a_tenth_longer_and_their_generators_as_many_as_predicted(row):
    assert row.same / row.loop.same_gpus == pytest.approx(1.08, abs=0.01)
    assert row.apart / row.loop.apart(row.generators) == pytest.approx(1.04, abs=0.01)
    assert row.loop.best == row.generators
    assert row.loop.full == pytest.approx(0.46, abs=0.01)
