"""A run with failures at random times loses what the formulas say."""

import itertools

import pytest

from shardlab.costs.operations import Reliability, play, shares

RUNS = {
    "short saves": (Reliability(between=10_000.0, save=20.0, restart=300.0), 600.0),
    "with a lag": (Reliability(between=2_000.0, save=5.0, lag=150.0, restart=100.0), 200.0),
    "hardly alive": (Reliability(between=300.0, save=60.0, restart=120.0), 150.0),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_played_run_loses_what_the_formulas_say(name):
    run, interval = RUNS[name]
    played = shares([*play(run, interval, 3_000 * run.between, seed=7)])
    assert played == pytest.approx(run.losses(interval), abs=0.008)


@pytest.mark.parametrize("name", RUNS)
def test_stretches_follow_each_other_and_useful_ones_are_whole(name):
    run, interval = RUNS[name]
    stretches = [*play(run, interval, 50 * interval, seed=1)]
    assert stretches[0].start == 0
    assert all(one.end == two.start for one, two in itertools.pairwise(stretches))
    useful = [stretch for stretch in stretches if stretch.kind == "useful"]
    assert [each.end - each.start for each in useful] == pytest.approx([interval] * 50)
    assert stretches == [*play(run, interval, 50 * interval, seed=1)]
    assert stretches != [*play(run, interval, 50 * interval, seed=2)]


def test_a_run_that_never_saves_is_refused():
    with pytest.raises(ValueError, match="with a failure every 10 s, 1000 s of training are never saved"):
        play(Reliability(between=10.0, save=1.0), 1000.0, 1.0, 0)
    with pytest.raises(ValueError, match="no shares"):
        shares([])
