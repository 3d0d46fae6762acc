"""Layouts split ranks and layers as by hand, and an error advises degrees that work."""

import re
from itertools import permutations

import pytest

from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import (
    AXES,
    AXES_3D,
    Layout,
    coordinates,
    expert_degrees,
    groups,
    stages,
    tensor_degrees,
    together,
)


def spec(**changes):
    sizes = {"vocab_size": 50, "context_length": 16, "hidden_size": 24, "num_layers": 6, "num_heads": 12}
    return TransformerSpec(**{**sizes, **changes})


def test_ranks_are_the_product_of_the_axes_without_the_experts():
    assert Layout(dp=2, tp=3, pp=5, cp=7, ep=2).ranks == 210
    assert Layout().ranks == 1


def test_the_first_stages_take_one_layer_more():
    assert [len(stage) for stage in stages(126, 16)] == [8] * 14 + [7] * 2


def test_embedding_and_head_take_the_place_of_a_layer_where_only_so_chunks_come_out_even():
    assert [len(stage) for stage in stages(126, 16, 8)] == [7, *[8] * 14, 7]
    assert [len(stage) for stage in stages(96, 8, 3)] == [12] * 8
    dealt = [layer for part in stages(126, 16, 8) for layer in part]
    assert dealt == list(range(126))


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("ffn", [96, 40, 7])
def test_tensor_degrees_are_those_that_cut_everything_evenly(kv_heads, ffn):
    """Brute force over who holds which head: as many query heads each, and each with the key head it asks."""
    model = spec(num_kv_heads=kv_heads, ffn_size=ffn)
    works = []
    for tp in range(1, 14):
        ranks = [{h for h in range(12) if h * tp // 12 == rank} for rank in range(tp)]
        keys = [{h * kv_heads // 12 for h in heads} for heads in ranks]
        alike = {len(heads) for heads in ranks} == {12 / tp} and len({len(held) for held in keys}) == 1
        if alike and ffn % tp == 0 and len(keys[0]) == max(1, kv_heads / tp):
            works.append(tp)
            Layout(tp=tp).check(model)
            assert Layout(tp=tp).kv_heads(model) == len(keys[0])
        else:
            with pytest.raises(ValueError, match="use tp = 1"):
                Layout(tp=tp).check(model)
    assert tensor_degrees(model) == works


def test_what_an_error_advises_works():
    model = spec(num_kv_heads=4)
    mixture = spec(experts=Experts(num_experts=6, per_token=2, expert_size=8))
    cases = [(model, axis, {axis: 7}) for axis in ("tp", "pp")]
    cases += [(mixture, "tp", {"tp": 3}), (model, "ep", {"dp": 4, "ep": 2}), (mixture, "ep", {"dp": 12, "ep": 4})]
    for model, axis, degrees in cases:
        with pytest.raises(ValueError, match=f"use {axis} = ") as refused:
            Layout(**degrees).check(model)
        for degree in re.findall(r"\d+", str(refused.value).partition("; use ")[2]):
            Layout(**{**degrees, axis: int(degree)}).check(model)


def test_experts_are_dealt_evenly_to_ranks_of_dp():
    mixture = spec(experts=Experts(num_experts=6, per_token=2, expert_size=8))
    assert expert_degrees(mixture, 12) == [1, 2, 3, 6]
    assert expert_degrees(mixture, 4) == [1, 2]
    assert expert_degrees(spec(), 12) == [1]
    with pytest.raises(ValueError, match="expert_size=8 do not split over tp=3; use tp = 1, 2, 4"):
        Layout(tp=3).check(mixture)


def test_whole_experts_are_dealt_to_ranks_of_tp_too():
    mixture = spec(experts=Experts(num_experts=12, per_token=2, expert_size=12))
    cut = Layout(dp=6, ep=2, tp=3)
    whole = Layout(dp=6, ep=2, tp=3, sequence_parallel=True, whole_experts=True)
    for layout, ranks, parts in ((cut, 2, 3), (whole, 6, 1)):
        layout.check(mixture)
        assert (layout.expert_ranks, layout.expert_tp) == (ranks, parts)
    with pytest.raises(ValueError, match=r"each of tp=3 ranks sends .*; use sequence_parallel=True, which"):
        Layout(tp=3, whole_experts=True)
    eight = spec(experts=Experts(num_experts=8, per_token=2, expert_size=12))
    for model, has in ((spec(), "none"), (eight, "8 of them")):
        with pytest.raises(ValueError, match=f"hold whole experts, and this model has {has}; use whole_experts=False"):
            Layout(tp=3, sequence_parallel=True, whole_experts=True).check(model)


@pytest.mark.parametrize("degree", ["dp", "tp", "pp", "cp", "ep"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_a_degree_is_a_number_of_ranks(degree, value):
    with pytest.raises(ValueError, match=f"{degree}={re.escape(repr(value))} must be a whole number of at least 1"):
        Layout(**{degree: value})


def test_other_nonsense_is_refused():
    for call, message in [
        (lambda: Layout(zero=4), "stages 0, 1, 2, 3, not 4"),
        (lambda: Layout(dp=6, ep=4), "use ep = 1, 2, 3, 6"),
        (lambda: Layout(tp=24).check(spec()), "use tp = 1, 2, 3, 4, 6, 12$"),
        (lambda: Layout(pp=7).check(spec()), "6 layers leave some of pp=7 stages empty; use pp = 6 or less"),
        (lambda: stages(6, 7), "use pp = 1 to 6"),
        (lambda: stages(6, 0), "pp=0 must be a whole number of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# ---- groups of ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*permutations(AXES), *permutations(AXES_3D)])
def test_groups_are_all_ranks_that_differ_in_one_axis_only(order):
    layout = Layout(dp=3, tp=2, pp=2, cp=2) if "cp" in order else Layout(dp=3, tp=2, pp=4)
    found = groups(layout, order)
    places = [coordinates(rank, layout, order) for rank in range(24)]
    assert len({tuple(place.values()) for place in places}) == 24
    for axis, members in found.items():
        assert sorted(rank for group in members for rank in group) == list(range(24))
        for group in members:
            assert [places[rank][axis] for rank in group] == list(range(getattr(layout, axis)))
            assert len({tuple(v for k, v in places[rank].items() if k != axis) for rank in group}) == 1
    assert found[order[0]][0] == tuple(range(getattr(layout, order[0])))  # the first axis: neighbours


def test_six_gpus_as_two_pipelines_of_three():
    assert groups(Layout(dp=2, pp=3), ("tp", "pp", "dp"))["pp"] == [(0, 1, 2), (3, 4, 5)]
    assert groups(Layout(dp=2, pp=3), ("tp", "dp", "pp"))["pp"] == [(0, 2, 4), (1, 3, 5)]


@pytest.mark.parametrize("order", [("dp", "pp"), ("tp", "tp", "dp", "pp"), ("tp", "dp", "pp", "ep")])
def test_an_order_names_each_axis_that_is_cut_once(order):
    with pytest.raises(ValueError, match="is not an order of the axes tp, cp, dp, pp; name each once"):
        groups(Layout(tp=2, dp=2), order)


def test_the_ranks_of_a_sequence_are_next_after_those_of_a_layer():
    """tp = 2, cp = 2, dp = 2, by hand: the order of Llama 3's and Megatron-LM's innermost axes."""
    found = groups(Layout(tp=2, cp=2, dp=2))
    assert found["tp"] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert found["cp"] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert found["dp"] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert together(Layout(tp=2, cp=2, dp=2), ("cp", "dp")) == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_experts_are_divided_among_neighbours_along_dp():
    """dp = 4 beside tp = 2: ranks 0 2 4 6 see different samples. With ep = 2, the neighbours 0 2 and 4 6 hold all
    experts between them, and 0 4 and 2 6 hold the same ones."""
    layout = Layout(tp=2, dp=4, ep=2)
    assert together(layout, ("ep",)) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert together(layout, ("edp",)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert together(layout, ("ep", "edp")) == together(layout, ("dp",)) == [(0, 2, 4, 6), (1, 3, 5, 7)]


@pytest.mark.parametrize("order", list(permutations(AXES_3D)))
def test_ranks_of_several_axes_are_those_that_share_the_others(order):
    layout = Layout(dp=3, tp=2, pp=4)
    assert together(layout, AXES, order) == [tuple(range(24))]
    assert together(layout, (), order) == [(rank,) for rank in range(24)]
    models = together(layout, ("tp", "pp"), order)
    assert sorted(rank for model in models for rank in model) == list(range(24))
    for dp, model in enumerate(models):
        assert {coordinates(rank, layout, order)["dp"] for rank in model} == {dp}
        assert len(model) == 8
