"""The winner of many predictions promises too much, and the robust plan is the one that stays near the top."""

import functools
from dataclasses import replace
from statistics import fmean

import pytest

from shardlab.costs.facts import nodes
from shardlab.costs.planning import planner, plans, robust
from shardlab.costs.published import steps, studies
from shardlab.costs.step import step
from shardlab.costs.traces import knee

NAME = "Llama 3 405B on 16,384 H100"
RATES = tuple(robust.RELATIVE_RATES)


@functools.cache
def found():
    return planner.search(studies.STUDIES[NAME].question)


@functools.cache
def ranked():
    return robust.rank(found())


@pytest.fixture
def fixed(monkeypatch):
    """Ranks the plans once, with the relative rates that are named; others are 1."""
    def rank(**rates):
        monkeypatch.setattr(robust, "ROUNDS", 1)
        monkeypatch.setattr(robust, "RELATIVE_RATES", {name: (1.0, 1.0) for name in RATES} | {
            name: (rate, rate) for name, rate in rates.items()
        })
        return robust.rank(found())

    return rank


def test_the_best_twenty_of_different_degrees_share_the_wins():
    candidates = ranked()
    assert {each.plan for each in candidates} == set(found().different[:20])
    assert sum(each.wins for each in candidates) == pytest.approx(1)
    assert [each.behind for each in candidates] == sorted(each.behind for each in candidates)
    assert all(0 <= each.behind <= each.worst for each in candidates)


def test_what_nobody_perturbs_stays_in_its_order(fixed):
    same = fixed()
    assert [each.plan for each in same] == found().different[:20]
    assert same[0].wins == 1
    assert same[3].behind == pytest.approx(found().different[3].seconds / found().best.seconds - 1)


def test_a_slower_network_is_what_a_slower_network_predicts(fixed):
    """Half the rate between nodes, drawn or built: the same seconds but for what the cards' own buses add."""
    question = found().question
    half = knee.at_rate(question.cluster, question.cluster.node.network_bandwidth / 2)
    built = [step(plans.run_of(replace(question, cluster=half), plan)).seconds for plan in found().different[:20]]
    drawn = fixed(network=0.5)
    by_plan = {each.plan: each.behind for each in drawn}
    for plan, seconds in zip(found().different[:20], built, strict=True):
        assert by_plan[plan] == pytest.approx(seconds / min(built) - 1, abs=0.01)


def test_slower_arithmetic_makes_messages_matter_less(fixed):
    """On a clock that is as slow as the arithmetic, every other rate is higher."""
    fast, slow = ({each.plan: each for each in fixed(arithmetic=rate)} for rate in (1.0, 0.25))
    most = max(found().different[:20], key=lambda plan: step(plans.run_of(found().question, plan)).communication)
    assert slow[most].behind < fast[most].behind


def test_the_mean_error_of_published_steps_is_the_four_percent_of_the_page():
    assert fmean(abs(row.error) for row in steps.STEPS) == pytest.approx(0.04, abs=0.005)


def test_the_least_of_many_predictions_is_too_low_and_more_so_the_more_they_err():
    alike = [1.0] * 1000
    late = [robust.broken_promise(alike, error) for error in (0.01, 0.03, 0.05)]
    assert late == sorted(late)
    # The least of 1,000 normal numbers is 3.24 standard deviations below their mean (Harter 1961).
    assert late[1] == pytest.approx(1 / (1 - 3.24 * 0.03) - 1, rel=0.05)
    assert robust.broken_promise([1.0], 0.03) == pytest.approx(0, abs=0.02)
    assert robust.broken_promise([1.0, 2.0], 0.01) < 0.01


def test_errors_that_turn_seconds_negative_are_refused():
    with pytest.raises(ValueError, match=r"error=0.3: give some, and an error below 0.25"):
        robust.broken_promise([1.0], 0.3)
    nothing = planner.search(replace(found().question, cluster=nodes.cluster("DGX H100"), batch=8))
    with pytest.raises(ValueError, match="nothing fits"):
        robust.rank(nothing)
