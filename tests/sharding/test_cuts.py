"""Pieces put together are the whole, and every query head finds its key/value head on its own rank."""

from math import prod

import pytest

from shardlab.costs.facts import models
from shardlab.costs.facts.models import PUBLISHED
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import tensor_degrees

SPECS = {name: PUBLISHED[name].spec for name in ("GPT-2 small", "GPT-2 XL", "Llama 3 8B", "Llama 3.2 1B")}


def numbers(spec, tp, rank):
    """Numbers of real parameters on one rank, and those of them that a lower rank holds too."""
    held, again = 0, 0
    for cut in cuts.model(spec, tp).values():
        count = prod(cut.shape)
        if cut.dim is not None:
            count = count // cut.shape[cut.dim] * len(cut.held(rank))
        held += count
        again += count * (rank % cut.holders > 0)
    return held, again


@pytest.mark.parametrize("name", SPECS)
def test_one_rank_holds_the_published_number_of_parameters(name):
    assert cuts.num_parameters(SPECS[name], 1) == PUBLISHED[name].parameters
    assert numbers(SPECS[name], 1, 0) == (PUBLISHED[name].parameters, 0)


@pytest.mark.parametrize("name", SPECS)
def test_what_all_ranks_hold_is_the_whole_once(name):
    spec = SPECS[name]
    for tp in tensor_degrees(spec):
        counts = [numbers(spec, tp, rank) for rank in range(tp)]
        assert sum(held - again for held, again in counts) == models.num_parameters(spec)


@pytest.mark.parametrize("shared", [0, 2])
def test_experts_are_cut_like_feed_forward_blocks_and_routers_stay_whole(shared):
    experts = Experts(num_experts=3, per_token=2, expert_size=8, num_shared=shared)
    sizes = {"vocab_size": 50, "context_length": 8, "hidden_size": 24, "num_layers": 1, "num_heads": 12}
    layer = cuts.block(TransformerSpec(**sizes, experts=experts), 2)
    mixture = {name: cut.local_shape for name, cut in layer.items() if name.startswith("mlp.")}
    widths = {f"mlp.experts.{n}": 4 for n in range(3)} | ({"mlp.shared": 8} if shared else {})
    expected = {"mlp.router.weight": (3, 24)}
    for name, width in widths.items():
        expected |= {f"{name}.{each}.weight": (width, 24) for each in ("gate", "up")}
        expected[f"{name}.down.weight"] = (24, width)
    assert mixture == expected


def test_whole_experts_are_cut_nowhere_and_on_one_rank_each():
    experts = Experts(num_experts=3, per_token=2, expert_size=8, num_shared=1)
    sizes = {"vocab_size": 50, "context_length": 8, "hidden_size": 24, "num_layers": 1, "num_heads": 12}
    spec = TransformerSpec(**sizes, experts=experts)
    whole, cut = cuts.block(spec, 2, whole_experts=True), cuts.block(spec, 2)
    for name in cut:
        if ".experts." in name:
            assert whole[name] == cuts.Cut(shape=cut[name].shape, ranks=1)
        else:
            assert whole[name] == cut[name]


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 12])
@pytest.mark.parametrize("tp", [1, 2, 4, 12])
def test_query_heads_find_their_key_heads(kv_heads, tp):
    sizes = {"vocab_size": 50, "context_length": 8, "hidden_size": 24, "num_layers": 1, "num_heads": 12}
    spec = TransformerSpec(**sizes, num_kv_heads=kv_heads)
    layer = cuts.block(spec, tp)
    for rank in range(tp):
        queries = {row // 2 for row in layer["attention.q.weight"].held(rank)}
        keys = {row // 2 for row in layer["attention.k.weight"].held(rank)}
        assert keys == {head * kv_heads // 12 for head in queries}
        assert layer["attention.v.bias"].held(rank) == layer["attention.k.weight"].held(rank)
        assert layer["attention.out.weight"].held(rank) == layer["attention.q.bias"].held(rank)
        assert layer["mlp.down.weight"].held(rank) == layer["mlp.up.weight"].held(rank)


@pytest.mark.parametrize(("vocab", "tp", "held"), [
    (50, 4, [13, 13, 13, 11]), (17, 8, [3, 3, 3, 3, 3, 2, 0, 0]), (8, 2, [4, 4]), (3, 4, [1, 1, 1, 0]),
])  # fmt: skip
def test_a_vocabulary_that_does_not_divide_is_padded_at_its_end(vocab, tp, held):
    cut = cuts.Cut(shape=(vocab, 6), ranks=tp, dim=0, pieces=tp)
    assert [len(cut.held(rank)) for rank in range(tp)] == held
    assert [row for rank in range(tp) for row in cut.held(rank)] == list(range(vocab))
    assert cut.local_shape == (max(held), 6)


def test_ranks_hold_less_as_tp_grows_but_norms_stay_whole():
    spec = SPECS["GPT-2 small"]
    assert cuts.num_parameters(spec, 4) == sum(prod(cut.local_shape) for cut in cuts.model(spec, 4).values())
    assert cuts.num_parameters(spec, 4) > models.num_parameters(spec) / 4
    for name, cut in cuts.model(spec, 4).items():
        assert (cut.dim is None) == ("norm" in name or "positions" in name or name.endswith(("out.bias", "down.bias")))
        assert cut.held(0) == range(0) if cut.dim is None else len(cut.held(0)) == cut.size
