"""The time of a layer: machines' rates, the ratio that DeepSeek prints, and what each engine hides."""

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.costs.compute import kernels
from shardlab.costs.facts import mixtures
from shardlab.costs.program import EXPERT_OVERLAPS, FP8

V3 = mixtures.published("DeepSeek-V3").spec
H800 = costs.machine("8 x H800")
TRAINED = costs.exchange(V3, H800, tokens=4096, ep=64, most_nodes=4, dispatch=FP8)
RATE = kernels.ordinary_flops(H800.chip, "fp8")


def test_rates_of_an_h800_are_those_that_its_users_print():
    """DeepSeek-V3, section 3.2.2: NVLink 160 GB/s, of 200 by the data sheet; four fifths, like all collectives."""
    assert H800.inside == pytest.approx(160e9)
    assert H800.across == pytest.approx(40e9)


@pytest.mark.parametrize(("name", "ep", "inside"), [("DGX H100", 64, 8), ("DGX H100", 4, 4), ("NVL72 rack", 64, 64)])
def test_neighbours_share_a_node_as_far_as_it_goes(name, ep, inside):
    assert costs.machine(name).per_node(ep) == inside
    assert costs.machine(name).per_node(128) == (64 if name == "NVL72 rack" else 8)


def test_deepseek_computes_about_as_long_as_it_communicates():
    """Section 3.2.1: a ratio of approximately 1:1 without overlap. Backward computes twice as much, sends the same."""
    parts = costs.layer(V3, TRAINED, H800, rate=RATE)
    sending = parts.pop("all-to-all, hidden") + parts.pop("all-to-all, exposed")
    assert 3 * sum(parts.values()) / (2 * sending) == pytest.approx(1, abs=0.15)


def test_the_slower_level_decides():
    levels = costs.travelling(TRAINED, H800, "nodes")
    assert levels["across"] > levels["inside"]
    two = costs.exchange(V3, H800, tokens=4096, ep=16, dispatch=FP8)
    assert costs.travelling(two, H800, "nodes")["inside"] > costs.travelling(two, H800, "nodes")["across"]
    rack = costs.machine("NVL72 rack")
    inside = costs.exchange(V3, rack, tokens=4096, ep=64)
    assert costs.travelling(inside, rack, "nodes")["across"] == 0


@pytest.mark.parametrize("overlap", EXPERT_OVERLAPS)
def test_what_is_hidden_and_exposed_adds_up_to_what_travels(overlap):
    parts = costs.layer(V3, TRAINED, H800, rate=RATE, overlap=overlap)
    sending = max(costs.travelling(TRAINED, H800, "nodes").values())
    assert parts["all-to-all, hidden"] + parts["all-to-all, exposed"] == pytest.approx(sending)
    behind = sum(parts[part] for part in EXPERT_OVERLAPS[overlap])
    assert parts["all-to-all, hidden"] == pytest.approx(min(behind, sending))


def test_imbalance_is_a_factor_on_experts_and_on_what_travels():
    even, uneven = (costs.layer(V3, TRAINED, H800, rate=RATE, imbalance=factor) for factor in (1.0, 1.5))
    for part in ("routed experts", "all-to-all, exposed"):
        assert uneven[part] == pytest.approx(1.5 * even[part])
    assert uneven["attention"] == even["attention"]


def test_what_is_unknown_is_refused():
    with pytest.raises(ValueError, match="no machine is called 'abacus'; known: DGX H100, 8 x H800"):
        costs.machine("abacus")
    with pytest.raises(ValueError, match="unknown overlap 'hope'; known: nothing, shared experts"):
        costs.layer(V3, TRAINED, H800, rate=1e14, overlap="hope")
