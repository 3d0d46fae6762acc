"""The best cut against every cut; and why none fits."""

import re
from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs import units
from shardlab.costs.pipeline import balance, timeline
from shardlab.costs.pipeline.balance import Layer
from shardlab.schedules import make

LAYERS = st.lists(
    st.builds(Layer, seconds=st.integers(0, 9), states=st.integers(0, 9), activations=st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


def every_cut(layers, in_flight, beside):
    n, p = len(layers), len(in_flight)
    for edges in combinations(range(1, n), p - 1):
        yield balance.measure(layers, [range(a, b) for a, b in pairwise([0, *edges, n])], in_flight, beside)


@given(LAYERS, st.integers(1, 5), st.one_of(st.none(), st.integers(0, 40)), st.booleans())
def test_the_cut_is_the_best_of_all_that_fit(layers, num_stages, memory, alike):
    in_flight = [3 if alike else num_stages - stage for stage in range(num_stages)]
    beside = None if alike else [stage % 3 for stage in range(num_stages)]
    if num_stages > len(layers):
        with pytest.raises(ValueError, match=f"do not fill {num_stages} stages; use 1 to {len(layers)} stages"):
            balance.split(layers, in_flight, memory, beside)
        return
    cuts = [*every_cut(layers, in_flight, beside)]
    fitting = [each for each in cuts if max(each.nbytes) <= (inf if memory is None else memory)]
    least = min(max(each.nbytes) for each in cuts)
    assert balance.least_memory(layers, in_flight, beside) == least
    if fitting:
        found = balance.split(layers, in_flight, memory, beside)
        assert found in fitting
        slowest = min(max(each.seconds) for each in fitting)
        fastest = [each for each in fitting if max(each.seconds) == slowest]
        assert found in fastest
        assert max(found.nbytes) == min(max(each.nbytes) for each in fastest)
    else:
        with pytest.raises(ValueError, match=f"devices of {units.text(least, 'B')}$") as caught:
            balance.split(layers, in_flight, memory, beside)
        assert "stage" in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "in_flight", "memory", "said"),
    [
        ([Layer(seconds=1, states=3)] * 6, [1, 1, 1], 5,
         "stage 2 cannot fit: the stages before it hold layers 0 to 1 at most, and layers 2 to 5 take 12 B of 5 B; "
         "use more stages, or devices of 6 B"),
        ([Layer(seconds=1, states=1)] * 5 + [Layer(seconds=1, states=9)], [1, 1], 8,
         "stage 1 cannot fit: the stages before it hold layers 0 to 4 at most, and layer 5 takes 9 B of 8 B; "
         "use more stages, or devices of 9 B"),
        ([Layer(seconds=1, states=1, activations=4)] * 2, [2, 1], 8,
         "stage 0 cannot hold even layer 0: 9 B of 8 B; use more stages, or devices of 9 B"),
        ([Layer(seconds=1, states=2)] * 2, [1], 3,
         "stage 0 cannot fit: layers 0 to 1 take 4 B of 3 B; use more stages, or devices of 4 B"),
    ],
)  # fmt: skip
def test_the_message_says_which_stage_and_what_would_do(layers, in_flight, memory, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        balance.split(layers, in_flight, memory)


def test_twenty_of_a_hundred_layers_may_fit_where_fifty_do_not():
    """The article's case: five such devices are needed, two are not enough."""
    layers = [Layer(seconds=1, states=4e9)] * 100
    with pytest.raises(ValueError, match=r"layers 0 to 19 at most, and layers 20 to 99 take 320 GB of 80 GB; .*200 GB"):
        balance.split(layers, [1, 1], 80e9)
    assert balance.split(layers, [1] * 5, 80e9).stages == [range(i, i + 20) for i in range(0, 100, 20)]


def test_a_heavy_head_gets_a_stage_of_its_own():
    layers = [Layer(seconds=s, states=1) for s in (1, 1, 1, 1, 1, 1, 4)]
    found = balance.split(layers, [1, 1, 1])
    assert found.seconds == [3, 3, 4]
    assert found.waiting == pytest.approx(1 - 10 / 12)


def test_memory_moves_the_cut_away_from_the_fastest():
    """The first stage of 1F1B holds the most microbatches: it must take fewer layers."""
    layers = [Layer(seconds=1, states=1, activations=2)] * 8
    in_flight = timeline.play(make("1F1B", 4, 8)).peaks()
    assert balance.split(layers, in_flight).stages == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]
    tight = balance.split(layers, in_flight, 14)
    assert [len(stage) for stage in tight.stages] == [1, 2, 2, 3]
    assert tight.nbytes == [9, 14, 10, 9]


def test_what_waits_for_the_slowest_is_what_the_timeline_says():
    """With so many microbatches that filling and emptying no longer count."""
    layers = [Layer(seconds=s, states=0) for s in (3, 3, 6, 3)]
    found = balance.split(layers, [1, 1, 1])
    durations = [{"F": s / 3, "B": 2 * s / 3} for s in found.seconds]
    played = timeline.play(make("1F1B", 3, 2000), durations)
    assert played.bubble_of_total == pytest.approx(found.waiting, abs=1e-3)


def test_a_hundred_layers_on_sixteen_stages():
    layers = [Layer(seconds=1 + i % 7, states=1) for i in range(100)]
    found = balance.split(layers, [1] * 16)
    assert sum(map(len, found.stages)) == 100
    assert max(found.seconds) >= sum(layer.seconds for layer in layers) / 16
