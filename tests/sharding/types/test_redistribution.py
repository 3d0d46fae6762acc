"""A redistribution has a mirror in backward, and sends the bytes that costs and the ledger count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.collectives import algorithms
from shardlab.sharding.types.redistribution import possible, redistribute, redistribution, sent_bytes
from shardlab.sharding.types.states import along, gradient, local_shape, parse

from .shardings import MESH, shardings

SIZES = {"B": 8, "S": 4, "h": 4, "f": 4}


@pytest.mark.parametrize(
    ("forward", "verb", "backward", "mirrored"),
    [
        ("I -> R", "", "P -> I", "all_reduce"),  # CopyToRanks of plain.tensor_parallel
        ("P -> I", "all_reduce", "I -> R", ""),  # SumOverRanks
        ("P -> R", "all_reduce", "P -> R", "all_reduce"),
        ("S(h) -> I", "all_gather", "I -> S(h)", ""),
        ("S(h) -> R", "all_gather", "P -> S(h)", "reduce_scatter"),  # parameters in ZeRO-3
        ("S(S) -> S(h)", "all_to_all", "S(h) -> S(S)", "all_to_all"),  # Ulysses
        ("R -> S(h)", "", "S(h) -> P", ""),
        ("R -> P", "", "R -> P", ""),
    ],
)
def test_backward_is_forward_in_a_mirror(forward, verb, backward, mirrored):
    change = redistribution("tp", forward)
    assert (change.verb, change.mirror.verb) == (verb, mirrored)
    assert change.mirror == redistribution("tp", backward)
    assert change.mirror.mirror == change


@given(shardings(), st.sampled_from(list(MESH)))
def test_what_leads_to_a_type_leads_its_gradient_back(x, axis):
    for change in possible(x, axis):
        y = redistribute(x, change)
        assert along(y, axis) == change.target
        if not x.fixed:  # which has no gradient, and adapts
            assert redistribute(gradient(y), change.mirror) == gradient(x)


@given(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 5))
def test_a_rank_sends_what_costs_and_the_ring_count(ranks, n):
    sizes, mesh = {"B": n * ranks, "h": ranks}, {"tp": ranks}
    whole = n * ranks * ranks * 4
    expected = {  # shapes are those of a whole tensor, except for the all-to-all, which has the local one
        ("[B, h] P@tp", "P -> I"): algorithms.ring_all_reduce(whole, ranks),
        ("[B, h] P@tp", "P -> R"): algorithms.ring_all_reduce(whole, ranks),
        ("[B, h] P@tp", "P -> S(h)"): algorithms.reduce_scatter(whole, ranks),
        ("[B, h/tp]", "S(h) -> R"): algorithms.all_gather(whole, ranks),
        ("[B, h/tp]", "S(h) -> S(B)"): algorithms.all_to_all(whole / ranks, ranks),
    }
    for (text, arrow), cost in expected.items():
        counted = sent_bytes(parse(text), redistribution("tp", arrow), sizes, mesh, itemsize=4)
        assert counted[0] == pytest.approx(cost.sent, abs=1e-9), arrow


def test_a_piece_is_cut_inside_the_piece_that_there_is():
    x = redistribute(parse("[B/dp, h]"), redistribution("tp", "I -> S(B)"))
    assert str(x) == "[B/dp/tp, h]"
    assert local_shape(x, SIZES, MESH) == (2, 4)


@pytest.mark.parametrize(
    ("text", "axis", "arrow", "message"),
    [
        ("[B] P@tp", "tp", "I -> P", "no redistribution 'I -> P'; use I -> R"),
        ("[B] P@tp", "tp", "P", "no redistribution 'P -> '"),
        ("[B/tp]", "tp", "S(B) -> S(B)", "changes nothing; remove it"),
        ("[B]", "tp", "P -> I", "I: P -> I starts at P, but each rank has the whole of it already"),
        ("[B] P@tp", "tp", "P -> S(h)", r"S\(h\): \[B\] P@tp has no such dim"),
        ("[B/dp/tp]", "dp", "S(B) -> I", "dp is not the last axis of B/dp/tp; gather tp first"),
    ],
)
def test_bad_input_gets_one_line_and_the_way_out(text, axis, arrow, message):
    with pytest.raises(ValueError, match=message):
        redistribute(parse(text), redistribution(axis, arrow))
