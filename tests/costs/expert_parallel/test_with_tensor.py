"""Whole experts and cut ones: the bytes of both by hand, and which sends less."""

from dataclasses import replace

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.model.experts import Experts

FINE = Experts(num_experts=64, per_token=4, expert_size=16)


def make(ep=1, tokens=64, **rules):
    return costs.Exchange(experts=replace(FINE, **rules), hidden_size=10, tokens=tokens, ep=ep)


def experts_of(ways):
    """Bytes of each way, without the scores."""
    return {way: sum(sent.values()) - sent["scores"] for way, sent in ways.items()}


def test_both_ways_by_hand():
    """One expert for each token, on one of four ranks: three quarters travel, or all tokens of three other slices."""
    ways = costs.tensor_ways(make(per_token=1, num_experts=4), 4)
    tokens = 2.0 * 10 * 64  # bytes of all of them
    nothing = {"dispatch": 0, "combine": 0}
    assert ways["cut"] == {"scores": 48 * 4 * 4, "gather": 0.75 * tokens, "scatter": 0.75 * tokens} | nothing
    travelling = 0.75 * tokens / 4
    assert ways["whole"] == ways["cut"] | {"gather": 0, "scatter": 0, "dispatch": travelling, "combine": travelling}


def test_without_tensor_parallelism_both_ways_are_one():
    ways = costs.tensor_ways(make(4), 1)
    assert ways["cut"] == ways["whole"]
    assert ways["cut"]["gather"] == 0


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_whole_experts_send_less_if_none_is_shared(ep, tp):
    sent = experts_of(costs.tensor_ways(make(ep), tp))
    assert sent["whole"] < sent["cut"]


def test_with_a_shared_expert_it_takes_several_ranks_of_ep():
    """What is gathered for the shared expert serves the cut ones, too."""
    for ep, wins in ((1, "cut"), (2, "whole"), (8, "whole")):
        sent = experts_of(costs.tensor_ways(make(ep, num_shared=1), 8))
        assert min(sent, key=sent.__getitem__) == wins


def test_what_does_not_split_is_refused():
    with pytest.raises(ValueError, match=r"tokens=6 do not split over tp=4 ranks; use tp = 1, 2, 3, 6"):
        costs.tensor_ways(make(tokens=6), 4)
    with pytest.raises(ValueError, match=r"64 experts do not split over ep=128 ranks"):
        costs.tensor_ways(make(32), 4)
