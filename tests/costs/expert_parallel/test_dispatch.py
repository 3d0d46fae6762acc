"""Bytes of expert parallelism: expectations equal counts over all choices, and two levels save what a paper says."""

from dataclasses import replace
from itertools import combinations
from statistics import fmean

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.costs.facts import hardware
from shardlab.costs.program import BF16, EXPERT_STRATEGIES, FP8
from shardlab.model.experts import Experts

V3 = Experts(num_experts=256, per_token=8, expert_size=2048, num_shared=1)
# DeepSeek-V3 in training: section 3.2.2 of https://arxiv.org/abs/2412.19437.
TRAINED = costs.TokenTraffic(
    experts=V3, hidden_size=7168, tokens=4096, ep=64, per_node=8, most_nodes=4, dispatch_bytes=FP8
)
SMALL = Experts(num_experts=8, per_token=3, expert_size=4)


def counted(traffic, strategy):
    """Copies of a token of rank 0, over all choices."""
    e = traffic
    per_rank = e.experts.num_experts // e.ep
    inside, across = [], []
    for one in combinations(range(e.experts.num_experts), e.experts.per_token):
        ranks = [x // per_rank for x in one]
        ranks = ranks if strategy == "flat" else sorted(set(ranks))
        near = [rank for rank in ranks if rank < e.per_node]
        far = [rank for rank in ranks if rank >= e.per_node]
        if strategy == "nodes":
            # Over the network it goes to the rank with the same place in the node, here place 0.
            inside.append(sum(rank % e.per_node != 0 for rank in ranks))
            across.append(len({rank // e.per_node for rank in far}))
        else:
            inside.append(sum(rank != 0 for rank in near))
            across.append(len(far))
    return {"inside": fmean(inside), "across": fmean(across)}


@pytest.mark.parametrize("strategy", EXPERT_STRATEGIES)
@pytest.mark.parametrize(("ep", "per_node"), [(1, 1), (4, 1), (4, 2), (4, 4), (8, 2)])
def test_copies_are_those_of_every_choice_counted(strategy, ep, per_node):
    traffic = costs.TokenTraffic(experts=SMALL, hidden_size=4, tokens=1, ep=ep, per_node=per_node)
    assert costs.copies(traffic, strategy) == pytest.approx(counted(traffic, strategy))


def test_one_rank_sends_nothing():
    alone = costs.TokenTraffic(experts=V3, hidden_size=8, tokens=5, ep=1)
    for strategy in EXPERT_STRATEGIES:
        assert costs.sent_bytes(alone, strategy)["dispatch"] == {"inside": 0, "across": 0}


def test_two_levels_and_four_nodes_send_less_than_half_over_the_network():
    """A token reaches 3.6 of its 4 nodes in the mean, and each holds 2.2 of its 8 experts."""
    flat, nodes = (costs.copies(TRAINED, strategy)["across"] for strategy in ("flat", "nodes"))
    assert flat == 7
    assert nodes == pytest.approx(3.63 * 7 / 8, rel=1e-3)
    free = costs.copies(replace(TRAINED, most_nodes=None), "nodes")["across"]
    assert nodes / flat == pytest.approx(0.454, abs=0.001)
    assert free / flat == pytest.approx(0.662, abs=0.001)


def test_up_to_13_experts_cost_no_more_over_the_network():
    """Section 3.2.2: NVLink is 3.2 times as fast as InfiniBand, so 3.2 experts on each of 4 nodes are sent in time."""
    for chosen, fits in ((8, True), (13, True), (20, False)):
        more = replace(TRAINED, experts=replace(V3, per_token=chosen))
        travelling = costs.copies(more, "nodes")
        assert (travelling["inside"] / 160 <= 4 / 50) == fits


def test_fp8_on_the_way_there_saves_almost_a_quarter():
    sixteen = costs.sent_bytes(replace(TRAINED, dispatch_bytes=BF16), "nodes")
    eight = costs.sent_bytes(TRAINED, "nodes")
    assert eight["combine"] == sixteen["combine"]
    assert eight["dispatch"]["across"] / sixteen["dispatch"]["across"] == FP8 / 2
    token = 7168 * costs.copies(TRAINED, "nodes")["across"]
    assert eight["dispatch"]["across"] == pytest.approx(4096 * token * 1.03125)


def test_the_slower_level_decides():
    """An H800's NVLink reaches 160 GB/s and its card 40; two nodes hand most tokens on inside."""
    rates = {"inside": hardware.link("NVLink 4 (H800)").reached, "across": hardware.link("InfiniBand NDR").reached}
    levels = costs.travelling(TRAINED, "nodes", **rates)
    assert levels["across"] > levels["inside"]
    two = costs.travelling(replace(TRAINED, ep=16), "nodes", **rates)
    assert two["inside"] > two["across"]
    rack = replace(TRAINED, per_node=64, most_nodes=None)
    assert costs.travelling(rack, "nodes", **rates)["across"] == 0


# ---- the inequality --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", EXPERT_STRATEGIES)
def test_at_the_limit_experts_compute_as_long_as_tokens_travel(strategy):
    rate, bandwidth = 4e14, 4e10
    width = costs.hiding_width(TRAINED, strategy, rate=rate, bandwidth=bandwidth)
    computing = 6 * TRAINED.hidden_size * width * 8 * TRAINED.tokens / rate
    sent = sum(trip["across"] for trip in costs.sent_bytes(TRAINED, strategy).values())
    assert sent / bandwidth == pytest.approx(computing)


def test_flat_in_16_bits_it_is_the_knee_of_the_chapter_on_placing_ranks():
    """2/3 s F / (f beta), with the share s that leaves the node."""
    flat = replace(TRAINED, most_nodes=None, dispatch_bytes=BF16)
    assert costs.hiding_width(flat, "flat", rate=4e14, bandwidth=4e10) == pytest.approx(2 / 3 * 7 / 8 * 1e4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"256 experts do not split over ep=3 ranks; use ep = 1, 2, 4"):
        replace(TRAINED, ep=3)
    with pytest.raises(ValueError, match=r"ep=64 ranks do not fill nodes of per_node=24"):
        replace(TRAINED, per_node=24)
    with pytest.raises(ValueError, match=r"1 nodes of 4 experts have fewer than per_token=8"):
        replace(TRAINED, ep=64, per_node=1, most_nodes=1)
    with pytest.raises(ValueError, match=r"unknown strategy 'star'; known: flat, ranks, nodes"):
        costs.copies(TRAINED, "star")
    with pytest.raises(ValueError, match=r"unknown level 'up'"):
        costs.hiding_width(TRAINED, "flat", rate=1.0, bandwidth=1.0, level="up")
