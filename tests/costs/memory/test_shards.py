"""The pieces of all ranks are the model, and what several ranks hold has a name."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.costs import memory
from shardlab.costs.compute import flops
from shardlab.costs.facts import models
from shardlab.costs.memory import shards
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout, tensor_degrees

from ...sharding.test_hybrids import HALVES, HYBRID, SPARSE
from .copies import held_again

PUBLISHED = [each.spec for each in models.PUBLISHED.values()]
SMALL = TransformerSpec(
    vocab_size=50, context_length=16, hidden_size=24, num_layers=7, num_heads=6, num_kv_heads=2, ffn_size=36
)
CHANGED = [  # as in Qwen 2.5, Qwen 3, Gemma 3, OLMo 2 and Pythia
    replace(SMALL, style="llama", bias_places=("qkv",)),
    replace(SMALL, style="llama", head_dim=16, head_norms=True),
    replace(SMALL, style="llama", head_dim=8, head_norms=True, post_norms=True, tied_head=True),
    replace(SMALL, style="llama", head_dim=16, whole_norms=True, sinks=True),
    replace(SMALL, position_style="rotary", tied_head=False, bias_places=("ffn",)),
]


@settings(deadline=None)
@given(spec=st.sampled_from([*PUBLISHED, SMALL, *CHANGED]), data=st.data())
def test_summed_over_ranks_it_is_the_model_and_what_is_held_again(spec, data):
    """The whole is counted from the shapes of the layers; what is held again, by hand from the layout."""
    layout = Layout(
        tp=data.draw(st.sampled_from(tensor_degrees(spec))),
        pp=data.draw(st.integers(1, min(spec.num_layers, 16))),
    )
    ranks = sum(layout.tp * sum(shards.parameters(spec, layout, stage).values()) for stage in range(layout.pp))
    assert ranks == models.num_parameters(spec) + sum(held_again(spec, layout).values())


@pytest.mark.parametrize("spec", [*PUBLISHED[:4], *PUBLISHED[-3:], *CHANGED])
def test_one_rank_has_the_parts_of_the_model(spec):
    assert shards.parameters(spec, Layout()) == models.parameters(spec)
    assert not any(held_again(spec, Layout()).values())


def test_what_is_held_again_has_names():
    gpt = models.published("GPT-2 small").spec
    assert held_again(gpt, Layout(pp=2)) == {
        "tied head": 50257 * 768,
        "position embedding": 0,
        "norms": 0,
        "biases after a sum": 0,
        "key/value heads": 0,
        "padding of the vocabulary": 0,
    }
    again = held_again(gpt, Layout(tp=4))
    assert again["position embedding"] == 3 * 1024 * 768
    assert again["norms"] == 3 * 25 * 2 * 768
    assert again["biases after a sum"] == 3 * 12 * 2 * 768
    assert again["padding of the vocabulary"] == 3 * 768  # 4 * 12565 = 50260 rows
    llama = held_again(models.published("Llama 3 8B").spec, Layout(tp=16))
    assert llama["key/value heads"] == 32 * 2 * 8 * 128 * 4096  # each of 8 heads on two ranks


@pytest.mark.parametrize("spec", [SMALL, *PUBLISHED[:2], *CHANGED])
def test_a_rank_holds_the_pieces_that_are_cut_for_it(spec):
    for tp in tensor_degrees(spec):
        held = sum(shards.parameters(spec, Layout(tp=tp)).values())
        assert held == cuts.num_parameters(spec, tp)
        layers = spec.num_layers * shards.layer_parameters(spec, Layout(tp=tp))
        assert layers == held - sum(
            shards.parameters(spec, Layout(tp=tp))[part] for part in ("token embedding", "position embedding", "head")
        ) - models.norm_parameters(spec)


@pytest.mark.parametrize("spec", [HYBRID, HALVES], ids=["whole layers", "single halves"])
def test_stages_of_a_hybrid_hold_the_whole_model(spec):
    held = [sum(shards.parameters(spec, Layout(pp=2), stage).values()) for stage in range(2)]
    assert sum(held) == models.num_parameters(spec)
    for tp in tensor_degrees(spec):
        layout = Layout(tp=tp)
        held = shards.parameters(spec, layout)
        assert sum(held.values()) == cuts.num_parameters(spec, tp)
        layers = held["attention"] + held["feed-forward"] + held["norms"] - spec.hidden_size
        assert 0 <= 8 * shards.layer_parameters(spec, layout) - layers < 8  # of the mean, rounded up


def test_stages_hold_what_stands_at_their_ends():
    first, middle, last = (shards.parameters(SMALL, Layout(pp=3), stage) for stage in range(3))
    layer = shards.layer_parameters(SMALL, Layout(pp=3))
    assert sum(middle.values()) == 2 * layer
    assert sum(first.values()) == 3 * layer + (50 + 16) * 24
    assert sum(last.values()) == 2 * layer + 2 * 24 + 50 * 24  # the last norm, and a copy of the tied embedding


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="stage=2 must be a whole number from 0 to 1"):
        shards.parameters(SMALL, Layout(pp=2), 2)
    with pytest.raises(ValueError, match="use tp = 1, 2, 6"):
        shards.parameters(SMALL, Layout(tp=5))


# ---- mixtures of experts ---------------------------------------------------------------------------------------------

MIXTURE = TransformerSpec(
    vocab_size=64,
    context_length=16,
    hidden_size=16,
    num_layers=4,
    num_heads=4,
    style="llama",
    experts=Experts(num_experts=4, per_token=2, expert_size=8, num_shared=1),
)


WHOLE = Layout(dp=2, ep=2, tp=2, sequence_parallel=True, whole_experts=True)


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=4, ep=4), Layout(dp=2, ep=2, tp=2, pp=2), WHOLE], ids=str)
def test_experts_are_held_once_and_the_rest_by_every_rank_of_ep(layout):
    """Summed over stages, tp and ep, each expert once; all else on each rank of ep, copies of tp included."""
    held = [shards.parameters(MIXTURE, layout, stage) for stage in range(layout.pp)]
    routed = [shards.routed(MIXTURE, layout, stage) for stage in range(layout.pp)]
    every = MIXTURE.num_layers * MIXTURE.experts.num_experts * models.expert_parameters(MIXTURE)
    assert layout.tp * layout.ep * sum(routed) == every
    rest = layout.tp * (sum(sum(parts.values()) for parts in held) - sum(routed))
    copies = (layout.tp - 1) * MIXTURE.num_layers * MIXTURE.experts.num_experts * MIXTURE.hidden_size  # of routers
    again = sum(held_again(MIXTURE, layout).values())
    assert rest == models.num_parameters(MIXTURE) - every + copies + again
    alone = replace(layout, pp=1)
    assert shards.layer_parameters(MIXTURE, alone) * 4 == sum(
        shards.parameters(MIXTURE, alone)[part] for part in ("attention", "feed-forward", "norms")
    ) - models.norm_parameters(MIXTURE)


def test_zero_cuts_experts_over_the_ranks_that_hold_the_same():
    plain, cut = (
        memory.states(Training(spec=MIXTURE, layout=Layout(dp=4, ep=2, zero=zero)))["optimizer"] for zero in (0, 1)
    )
    routed = 12 * shards.routed(MIXTURE, Layout(dp=4, ep=2))
    assert cut == (plain - routed) / 4 + routed / 2


def test_the_flops_of_a_mixture_are_those_of_the_chosen_experts():
    parts = flops.forward(MIXTURE, batch=1, sequence=16)
    assert parts["feed-forward"] == 4 * 2 * 16 * 16 * (3 * (2 + 1) * 8 + 4)


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=4, ep=4), Layout(tp=2, dp=2, ep=2), Layout(pp=2, dp=2, ep=2)])
def test_ranks_hold_their_experts_of_the_layers_that_have_any(layout):
    """2 of 8 layers are mixtures alone."""
    held = [shards.parameters(SPARSE, layout, stage) for stage in range(layout.pp)]
    routed = [shards.routed(SPARSE, layout, stage) for stage in range(layout.pp)]
    every = 2 * 4 * 2 * 16 * 8  # layers, experts, matrices
    assert sum(routed) * layout.tp * layout.ep == every
    mean = shards.layer_parameters(SPARSE, layout) - shards.layer_routed(SPARSE, layout)
    if layout.tp == 1:
        rest = models.num_parameters(SPARSE) - every
        assert sum(sum(each.values()) for each in held) - sum(routed) == rest
        assert 8 * mean == pytest.approx(rest - (2 * 50 + 1) * 16, abs=8)


def test_the_largest_layers_are_those_of_a_hybrids_kinds():
    """M E M * M E M *: beside states is a mixture or attention; ranks of ep hold fewer experts."""
    for layout in (Layout(), Layout(dp=4, ep=4)):
        attention, states, mixture = (shards.layer_parameters(kind, layout) for _, kind in SPARSE.layer_kinds)
        assert states > max(attention, mixture)
        assert shards.largest(SPARSE, layout) == (states, states + max(attention, mixture))
    bare = replace(HALVES, recurrent=None)  # * - * * * - * *
    attention, block = (shards.layer_parameters(kind, Layout()) for _, kind in bare.layer_kinds)
    assert shards.largest(bare, Layout()) == (block, block + attention)
    same = shards.layer_parameters(SMALL, Layout())
    assert shards.largest(SMALL, Layout()) == (same, 2 * same)


def test_zero_3_gathers_a_hybrids_largest_layers():
    training = Training(spec=SPARSE, layout=Layout(dp=2, zero=3))
    largest, pair = shards.largest(SPARSE, training.layout)
    ends = (2 * 50 + 1) * 16
    found = memory.messages(training)
    assert found["gathered layers"] == pytest.approx(2 * (pair + ends), abs=2 * 8)
    assert found["gradients of head and layer"] == 2 * (50 * 16 + largest)
