"""Redundant experts: slots are filled, hot experts are copied, and no placement is much more even."""

from itertools import combinations_with_replacement, product
from random import Random

import pytest

from shardlab.costs import expert_parallel as costs


def drawn(count, seed):
    random = Random(seed)
    return [random.randint(0, 9) * random.randint(0, 9) for _ in range(count)]


def test_a_hot_expert_gets_the_spare_slots_and_its_copies_share_its_tokens():
    assert costs.replicated([9, 2, 2, 1], 2, spare=1) == [[0, 1, 2], [0, 1, 3]]
    assert costs.rank_loads([9, 2, 2, 1], [[0, 1, 2], [0, 1, 3]]) == [7.5, 6.5]


def test_without_spare_slots_experts_only_move():
    placement = costs.replicated([8, 7, 2, 1], 2, spare=0)
    assert placement == [[0, 3], [1, 2]]
    assert costs.rank_loads([8, 7, 2, 1], placement) == [9, 9]


@pytest.mark.parametrize("seed", range(40))
def test_every_slot_holds_an_expert_that_its_rank_has_once(seed):
    """For as many spare slots as there can be: the last copies always find a rank."""
    ranks, each = 1 + seed % 5, 1 + seed // 8
    loads = drawn(ranks * each, seed)
    for spare in range(ranks * each - each + 1):
        placement = costs.replicated(loads, ranks, spare)
        assert [len(set(experts)) for experts in placement] == [each + spare] * ranks
        assert sum(costs.rank_loads(loads, placement)) == pytest.approx(sum(loads))


@pytest.mark.parametrize("seed", range(10))
def test_no_other_numbers_of_copies_make_the_fullest_copy_lighter(seed):
    """All ways to hand out three spare slots, counted."""
    loads = drawn(6, seed)
    held = [expert for experts in costs.replicated(loads, 3, spare=1) for expert in experts]
    found = max(load / held.count(expert) for expert, load in enumerate(loads))
    ways = [way for way in combinations_with_replacement(range(6), 3) if max(map(way.count, way)) < 3]
    assert found == min(max(load / (1 + way.count(n)) for n, load in enumerate(loads)) for way in ways)


@pytest.mark.parametrize("seed", range(10))
def test_the_greedy_rule_is_within_a_sixth_of_the_best_placement(seed):
    """All 3^6 ways in which six experts lie on three ranks, two on each."""
    loads = drawn(6, seed)
    best = min(
        max(sum(load for load, rank in zip(loads, way, strict=True) if rank == each) for each in range(3))
        for way in product(range(3), repeat=6)
        if all(way.count(each) == 2 for each in range(3))
    )
    assert best <= max(costs.rank_loads(loads, costs.replicated(loads, 3, 0))) <= 7 / 6 * best


def test_a_copy_does_what_moving_cannot_and_helps_tokens_it_has_not_seen():
    seen, later = (costs.loads(costs.chosen(costs.arrivals(512, 16, 0.5, seed), 2), 16) for seed in (0, 1))
    moved, copied = (costs.replicated(seen, 8, spare) for spare in (0, 1))
    assert max(costs.rank_loads(seen, moved)) > max(seen)  # an expert that is whole is on one rank
    assert max(costs.rank_loads(seen, copied)) < max(seen)
    assert costs.imbalance(costs.rank_loads(seen, copied)) < 1.05
    assert costs.imbalance(costs.rank_loads(later, copied)) < 1.2


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="3 experts do not split over ranks=2; use ranks = 1, 3"):
        costs.replicated([1, 1, 1], 2, 0)
    with pytest.raises(ValueError, match="spare=3 slots must be from 0 to 2"):
        costs.replicated([1] * 4, 2, 3)
    with pytest.raises(ValueError, match="expert 1 is on no rank"):
        costs.rank_loads([1, 1], [[0], [0]])
    with pytest.raises(ValueError, match="placement=2 must be a whole number from 0 to 1"):
        costs.rank_loads([1, 1], [[0], [2]])
