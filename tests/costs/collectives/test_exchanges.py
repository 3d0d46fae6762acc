"""The cost of a plan conserves bytes, and for equal pieces equals the formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import exchanges as plans
from shardlab.costs import collectives
from shardlab.costs.collectives import exchanges

MAKES = list(plans.ALL_REDUCES.values())


@given(st.sampled_from(MAKES), st.integers(1, 20), st.integers(0, 500), st.sampled_from([2, 4, 8]))
def test_bytes_are_conserved(make, ranks, length, element):
    plan = make(ranks)
    sizes = exchanges.piece_bytes(plan, length, element)
    sent, received = exchanges.bytes_by_rank(plan, sizes)
    assert sum(sizes) == length * element
    assert sum(sent) == sum(received)
    cost = exchanges.cost(plan, length, element)
    assert (cost.sent, cost.received) == (max(sent), max(received))


@given(st.sampled_from(sorted(plans.ALL_REDUCES)), st.integers(2, 20), st.integers(1, 50), st.sampled_from([2, 4, 8]))
def test_equal_pieces_cost_what_the_formula_says(name, ranks, rows, element):
    plan = plans.ALL_REDUCES[name](ranks)
    length = rows * plan.num_pieces
    cost, formula = exchanges.cost(plan, length, element), collectives.ALL_REDUCES[name](length * element, ranks)
    assert (cost.steps, cost.serial) == (formula.steps, pytest.approx(formula.serial))
    assert (cost.sent, cost.received) == (pytest.approx(formula.sent), pytest.approx(formula.received))


def test_uneven_pieces_by_hand():
    """Seven numbers on a ring of 3 are pieces of 3, 2 and 2: rank 1 sends 3 + 2 of them, twice; 28/3 by the formula."""
    plan = plans.ring_all_reduce(3)
    assert exchanges.piece_bytes(plan, 7, 4) == [12, 8, 8]
    assert exchanges.bytes_by_rank(plan, [12, 8, 8])[0] == [36, 40, 36]
    assert exchanges.cost(plan, 7, 4) == collectives.Cost(steps=4, serial=48, sent=40, received=40)


def test_one_rank_and_no_numbers_cost_nothing():
    nothing = collectives.Cost(steps=0, serial=0, sent=0, received=0)
    assert exchanges.cost(plans.ring_all_reduce(1), 100, 4) == nothing
    assert exchanges.cost(plans.ring_all_reduce(4), 0, 4) == nothing


@pytest.mark.parametrize(
    ("make", "buffers"),  # by hand: what crosses between ranks 0, 1 and ranks 2, 3
    [
        (plans.naive_all_reduce, 4),  # two whole buffers in, then two out
        (plans.binomial_all_reduce, 2),
        (plans.ring_all_reduce, 6 / 4),  # a quarter each way in each of six steps
        (plans.recursive_doubling_all_reduce, 2),  # two whole buffers at once
        (plans.halving_doubling_all_reduce, 2),  # two halves at once, twice
        (lambda n: plans.hierarchical_all_reduce(n, 2), 1),  # two quarters at once, twice
    ],
)
def test_what_crosses_between_two_hosts(make, buffers):
    assert exchanges.between_groups(make(4), 2) == buffers
    assert exchanges.between_groups(make(4), 4) == 0
