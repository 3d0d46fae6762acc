"""Load of experts: the fullest, by formula, by simulation, and by every choice where there are few."""

from itertools import product
from math import sqrt
from statistics import fmean

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.costs.expert_parallel import load
from shardlab.model.experts import Experts


def experts(count, chosen, capacity=None):
    return Experts(num_experts=count, per_token=chosen, expert_size=1, capacity=capacity)


def test_the_fullest_over_the_mean():
    assert costs.imbalance([5, 1, 3, 3]) == 5 / 3
    assert costs.imbalance([0, 0]) == costs.imbalance([2, 2]) == 1
    with pytest.raises(ValueError, match="give the load"):
        costs.imbalance([])


@pytest.mark.parametrize(("count", "known"), [(1, 0.0), (2, 0.5642), (4, 1.0294), (8, 1.4236), (64, 2.3437)])
def test_the_largest_of_normal_variables(count, known):
    """Tippett 1925: means of the range of normal samples, halved; known for a hundred years."""
    assert load.fullest_normal(count) == pytest.approx(known, abs=2e-4)


def test_few_tokens_are_enough_for_the_formula_to_be_within_some_percent():
    """All 4^8 = 65,536 ways in which 8 tokens choose one of 4 experts, counted."""
    every = fmean(max(map(way.count, range(4))) for way in product(range(4), repeat=8)) / 2
    assert costs.expected_imbalance(experts(4, 1), 8, 4) == pytest.approx(every, rel=0.03)


@pytest.mark.parametrize(("count", "chosen", "tokens", "groups"), [(8, 2, 200, 8), (32, 8, 100, 8), (32, 4, 200, 32)])
def test_the_formula_is_what_random_routing_does(count, chosen, tokens, groups):
    found = []
    for seed in range(50):
        held = costs.loads(costs.chosen(costs.arrivals(tokens, count, seed=seed), chosen), count)
        size = count // groups
        found.append(costs.imbalance([sum(held[size * g : size * (g + 1)]) for g in range(groups)]))
    excess = costs.expected_imbalance(experts(count, chosen), tokens, groups) - 1
    assert excess == pytest.approx(fmean(found) - 1, rel=0.1)


def test_more_tokens_and_fewer_groups_are_more_even():
    even = [costs.expected_imbalance(experts(256, 8), 4096 * 64, groups) for groups in (1, 8, 64, 256)]
    assert even == sorted(even)
    assert even[0] == 1
    assert even[2] < 1.02  # random routing of a real batch is not what balancing is for
    assert costs.expected_imbalance(experts(8, 2), 400, 8) - 1 == pytest.approx(
        2 * (costs.expected_imbalance(experts(8, 2), 1600, 8) - 1)
    )


def test_popular_experts_are_chosen_more_often_as_their_popularity_says():
    scores = costs.arrivals(4000, 4, skew=1.0)
    first = costs.loads(costs.chosen(scores, 1), 4)
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for expert, count in enumerate(first):
        share = 1 / (expert + 1) / total
        assert count / 4000 == pytest.approx(share, abs=4 * sqrt(share / 4000))
    assert all(len(set(row)) == 3 for row in costs.chosen(scores, 3))


def test_a_learned_favour_evens_out_tokens_that_it_has_not_seen():
    """Balancing leaves what random routing leaves."""
    seen, next_ones = (costs.arrivals(600, 16, skew=1.0, seed=seed) for seed in (0, 1))
    learned = costs.favours(seen, 2, steps=60, step=0.05)
    before = costs.imbalance(costs.loads(costs.chosen(next_ones, 2), 16))
    after = costs.imbalance(costs.loads(costs.chosen(next_ones, 2, learned), 16))
    assert before > 3
    assert after < 1.4
    assert learned[0] < 1 < learned[15]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="8 experts do not split into groups=3"):
        costs.expected_imbalance(experts(8, 2), 10, 3)
    with pytest.raises(ValueError, match="cannot give per_token=3; give every token a score"):
        costs.chosen([[1.0, 2.0]], 3)
    with pytest.raises(ValueError, match="cannot give per_token=1"):
        costs.chosen([[1.0, 2.0]], 1, [1.0])
    with pytest.raises(ValueError, match="routes=2 must be a whole number from 0 to 1"):
        costs.loads([[2]], 2)
    with pytest.raises(ValueError, match="use fewer"):
        costs.favours([[1.0]], 1, steps=1000, step=1.0)
