"""Stages of a hybrid are counted where each has its share of both kinds of layer; others are refused."""

from dataclasses import replace
from math import prod

import pytest

from shardlab.costs.facts import models
from shardlab.model.experts import Experts
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.hybrids import alike, unlike, unshared
from shardlab.sharding.layout import Layout, tensor_degrees

STATES = Recurrent(
    rule="Gated DeltaNet", layers=(0, 1, 2, 4, 5, 6), num_heads=8, key_heads=4, key_size=4, value_size=6, convolution=3
)
HYBRID = TransformerSpec(
    vocab_size=50, context_length=64, hidden_size=16, num_layers=8, num_heads=8, style="llama", output_gate=True,
    head_norms=True, recurrent=STATES,
)  # fmt: skip

MAMBA = replace(STATES, rule="Mamba-2", layers=(0, 2, 4, 6), chunk=16)
HALVES = replace(HYBRID, recurrent=MAMBA, blocks_at=(1, 5), gated=False, output_gate=False, head_norms=False)


MIXTURE = Experts(num_experts=4, per_token=2, expert_size=8, num_shared=2, choose="sigmoid", balance="bias")
SPARSE = replace(HALVES, experts=MIXTURE)


def test_pieces_are_alike_that_have_as_many_layers_of_each_kind():
    assert [pieces for pieces in range(1, 9) if alike(HYBRID, pieces)] == [1, 2]
    halves = replace(HYBRID, recurrent=replace(STATES, layers=(1, 3, 5, 7)))
    assert [pieces for pieces in range(1, 9) if alike(halves, pieces)] == [1, 2, 4]
    first = replace(HYBRID, recurrent=replace(STATES, layers=(0, 1)))
    assert [pieces for pieces in range(1, 9) if alike(first, pieces)] == [1]
    _, (_, every) = HYBRID.layer_kinds
    assert all(alike(replace(HYBRID, recurrent=None), 3) and alike(every, 3) for pieces in range(1, 9))


def test_pieces_of_single_halves_have_as_many_of_all_three_kinds():
    """M - M * M - M *: two of each four layers keep states, one is a block."""
    assert [pieces for pieces in range(1, 9) if alike(HALVES, pieces)] == [1, 2]
    moved = replace(HALVES, blocks_at=(1, 3))
    assert [pieces for pieces in range(1, 9) if alike(moved, pieces)] == [1]


ROUTED = replace(HYBRID, experts=MIXTURE, ffn_size=32, num_dense=2)


@pytest.mark.parametrize("spec", [HYBRID, HALVES, SPARSE, ROUTED], ids=["two kinds", "three", "experts", "dense"])
def test_each_layer_of_the_model_is_cut_as_its_own_kind(spec):
    cut = cuts.model(spec, 2)
    mixers = {name: [n for n in range(8) if f"blocks.{n}.attention.{name}" in cut] for name in ("q.weight", "decay")}
    places = {*range(8)} - {*spec.recurrent.layers, *(spec.blocks_at or ())}
    assert mixers == {"q.weight": sorted(places), "decay": [*spec.recurrent.layers]}
    routers = [n for n in range(8) if f"blocks.{n}.mlp.router.weight" in cut]
    assert routers == (list(spec.blocks_at or range(spec.num_dense, 8)) if spec.experts else [])
    assert sum(prod(each.shape) for each in cuts.model(spec, 1).values()) == models.num_parameters(spec)


def test_a_layer_of_one_half_has_one_norm_and_nothing_of_the_other_half():
    attention, states, blocks = (cuts.block(kind, 2) for _, kind in HALVES.layer_kinds)
    assert {name.partition(".")[0] for name in attention} == {"attention", "attention_norm"}
    assert {name.partition(".")[0] for name in states} == {"attention", "attention_norm"}
    assert sorted(blocks) == ["mlp.down.weight", "mlp.up.weight", "mlp_norm.weight"]


def test_experts_without_a_gate_have_two_matrices_and_stand_in_their_own_layers():
    attention, states, mixture = (cuts.block(kind, 2) for _, kind in SPARSE.layer_kinds)
    assert not any(name.startswith("mlp") for name in (*attention, *states))
    shapes = {name: cut.local_shape for name, cut in mixture.items() if name.startswith("mlp.experts.3")}
    assert shapes == {"mlp.experts.3.up.weight": (4, 16), "mlp.experts.3.down.weight": (16, 4)}
    assert mixture["mlp.shared.up.weight"].shape == (16, 16)
    assert not any("gate" in name for name in mixture)


def test_what_is_not_counted_is_refused_with_the_way_out():
    Layout(pp=2, tp=4).check(HYBRID)
    with pytest.raises(ValueError, match=r"pp=4: only stages .* use 1, 2 in all") as refusal:
        Layout(pp=4).check(HYBRID)
    assert unlike(HYBRID) in str(refusal.value)
    with pytest.raises(ValueError, match=r"cp=2: .* Gated DeltaNet, .* use cp = 1, and costs.*sent") as refusal:
        Layout(cp=2).check(HYBRID)
    assert unshared(HYBRID) in str(refusal.value)
    mamba = replace(HYBRID, recurrent=replace(STATES, rule="Mamba-2"))
    with pytest.raises(ValueError, match=r"cp=2: .* Mamba-2, which is not timed here; use cp = 1$"):
        Layout(cp=2).check(mamba)


def test_tensor_parallelism_deals_whole_heads_of_keys():
    """The 8 heads of attention, and of values, would do with 8 ranks; 4 heads of keys do not."""
    assert tensor_degrees(replace(HYBRID, recurrent=None)) == [1, 2, 4, 8]
    assert tensor_degrees(HYBRID) == [1, 2, 4]
    with pytest.raises(ValueError, match="and 4 heads of keys of Gated DeltaNet, do not split over tp=8"):
        Layout(tp=8).check(HYBRID)


def test_each_rank_of_tp_holds_its_heads_and_all_of_a_head_s_norm():
    _, (_, every) = HYBRID.layer_kinds
    held = {name: cut.local_shape for name, cut in cuts.block(every, 4).items() if name.startswith("attention.")}
    assert held == {
        "attention.in.weight": ((2 * 16 + 2 * 48 + 2 * 8) // 4, 16),
        "attention.convolution": ((2 * 16 + 48) // 4, 3),
        "attention.decay": (2 * 8 // 4,),
        "attention.scale": (6,),
        "attention.out.weight": (16, 48 // 4),
    }
    _, (_, mamba) = replace(HYBRID, recurrent=replace(STATES, rule="Mamba-2")).layer_kinds
    norm = cuts.block(mamba, 4)["attention.scale"]
    assert norm.local_shape == (48 // 4,)
    gate = cuts.block(HYBRID, 4)["attention.gate.weight"]
    assert gate.local_shape == (4, 16)
