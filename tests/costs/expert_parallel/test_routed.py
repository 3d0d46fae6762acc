"""The bytes of given routes: of all possible ones together they are the expectation of `exchange`."""

from itertools import combinations
from statistics import fmean

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.model.experts import Experts

SMALL = Experts(num_experts=8, per_token=3, expert_size=4)
EVERY = [list(token) for token in combinations(range(8), 3)]


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_over_all_choices_rows_are_the_expected_copies(ep):
    """Each member has every possible token once."""
    exchange = costs.Exchange(experts=SMALL, hidden_size=4, tokens=1, ep=ep)
    found = costs.rows([EVERY] * ep, 8 // ep)
    expected = sum(costs.copies(exchange, "ranks").values())
    assert [sum(row) / len(EVERY) for row in found] == pytest.approx([expected] * ep)


def test_two_hops_make_the_expected_copies_of_two_levels():
    """Of four ranks 0 and 1 are a node; rank 0 sends to rank 2, which has the same place."""
    exchange = costs.Exchange(experts=SMALL, hidden_size=4, tokens=1, ep=4, per_node=2)
    expected = costs.copies(exchange, "nodes")
    across = costs.rows([EVERY, EVERY], 4)
    assert fmean(map(sum, across)) / len(EVERY) == pytest.approx(expected["across"])
    arrived = costs.landed([EVERY, EVERY], 4)[0]  # on each rank of the first node
    inside = costs.rows([arrived, arrived], 2)
    assert fmean(map(sum, inside)) / len(EVERY) == pytest.approx(expected["inside"])


def test_a_token_without_a_slot_or_for_others_goes_nowhere():
    """Expert 8 does not exist; behind the two members are experts 4 to 7."""
    routes = [[[8, 8], [0, 8], [4, 5]], [[4, 7]]]
    assert costs.rows(routes, 2, 4) == [[0, 0], [1, 0]]
    assert costs.landed(routes, 2, 4) == [[[4, 5], [4, 7]], [[4, 7]]]


def test_messages_by_hand():
    """Two rows of 5 numbers with 3 weights go there, one comes: 2 bytes a number, 4 a choice, 8 a count."""
    first, second = costs.messages([[0, 2], [1, 0]], hidden_size=5, per_token=3)
    assert first == {
        "counts": 8,
        "choices": 24,
        "dispatch": 32,
        "combine": 10,
        "backward of combine": 20,
        "backward of dispatch": 16,
    }
    with pytest.raises(ValueError, match=r"rows of 1, 2 numbers for 2 members"):
        costs.messages([[0, 2], [1]], hidden_size=5, per_token=3)
    assert sum(second.values()) == 8 + 12 + 16 + 20 + 10 + 32
