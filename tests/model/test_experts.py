"""Mixtures of experts as plain data: what fits an expert, and what is refused."""

import dataclasses
from itertools import combinations
from statistics import fmean

import pytest

from shardlab.model.experts import Experts, distinct
from shardlab.model.spec import TransformerSpec

EIGHT = Experts(num_experts=8, per_token=2, expert_size=16)


def test_slots_are_a_multiple_of_the_even_load():
    assert EIGHT.slots(40) == 40  # all of them may choose the same expert
    assert [dataclasses.replace(EIGHT, capacity=each).slots(40) for each in (1, 1.25, 1.26, 9)] == [10, 13, 13, 40]


def test_shared_experts_are_one_block():
    assert [dataclasses.replace(EIGHT, num_shared=each).shared_size for each in (0, 3)] == [0, 48]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_token": 9}, "cannot use per_token=9 of num_experts=8 experts; use per_token = 1 to 8"),
        ({"capacity": 0.5}, "capacity=0.5 drops tokens even when the load is even; use 1 or more, or None"),
        ({"choose": "softmax"}, "unknown choose='softmax'; known: softmax before, softmax after, sigmoid"),
        ({"balance": "luck"}, "unknown balance='luck'; known: none, loss, bias"),
    ],
)
def test_what_is_no_mixture_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EIGHT, **changes)


def test_a_mixture_has_no_other_feed_forward_block():
    sizes = {"vocab_size": 8, "context_length": 4, "hidden_size": 8, "num_layers": 1, "num_heads": 2}
    assert TransformerSpec(**sizes, experts=EIGHT).experts == EIGHT
    with pytest.raises(ValueError, match="ffn_size=32 has no meaning in a mixture with num_dense=0 dense layers"):
        TransformerSpec(**sizes, experts=EIGHT, ffn_size=32)


@pytest.mark.parametrize(("groups", "size", "chosen"), [(4, 2, 3), (3, 3, 1), (2, 4, 5), (1, 6, 2), (8, 1, 4)])
def test_the_mean_number_of_groups_is_that_of_all_choices(groups, size, chosen):
    """Of 8 experts 3 are chosen in 56 ways; each way is looked at."""
    every = combinations(range(groups * size), chosen)
    assert distinct(groups, size, chosen) == pytest.approx(fmean(len({x // size for x in one}) for one in every))


def test_more_choices_than_items_are_refused():
    with pytest.raises(ValueError, match="chosen=5 is more than 2 groups of size=2 have"):
        distinct(2, 2, 5)
