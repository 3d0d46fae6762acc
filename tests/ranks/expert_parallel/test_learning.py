"""A mixture learns text, its load adds up, and both kinds of balancing even it out; its dense twin has equal FLOPs."""

import dataclasses

import pytest
import torch

from shardlab.costs.compute import flops
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import text
from shardlab.ranks.expert_parallel import dense_twin, learn

RULES = Experts(num_experts=8, per_token=2, expert_size=16, num_shared=1)
SPEC = TransformerSpec(
    vocab_size=text.VOCAB_SIZE,
    context_length=32,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    style="llama",
    experts=RULES,
)


def learned(**rules):
    spec = dataclasses.replace(SPEC, experts=dataclasses.replace(RULES, **rules))
    return learn(spec, text.read()[:50_000], steps=40, samples=8)


@pytest.fixture(scope="module")
def all_ways():
    balances = {"none": {}, "loss": {"loss_weight": 0.1}, "bias": {"bias_step": 0.02}}
    return {name: learned(balance=name, **options) for name, options in balances.items()}


def test_a_mixture_learns_and_its_load_adds_up(all_ways):
    for name, found in all_ways.items():
        assert found.losses[-1] < 0.75 * found.losses[0], name
        assert found.loads.shape == (40, 2, 8)
        torch.testing.assert_close(found.loads.sum(-1), torch.ones(40, 2))
        assert sum(found.late_load()) == pytest.approx(1, rel=1e-5)
        assert found.fullest()[0] >= 1


def test_balancing_evens_out_the_load(all_ways):
    late = {name: sum(found.fullest()[-10:]) / 10 for name, found in all_ways.items()}
    assert late["loss"] < late["none"]
    assert late["bias"] < late["none"]


def test_the_same_seed_gives_the_same_losses(all_ways):
    assert learned().losses == all_ways["none"].losses


def test_a_dense_twin_takes_the_flops_that_a_token_takes():
    twin = dense_twin(SPEC)
    assert (twin.ffn, twin.experts) == (3 * 16, None)
    assert flops.forward(twin, batch=1, sequence=32)["feed-forward"] == 2 * 2 * 3 * 32 * 32 * (3 * 16)
    found = learn(twin, text.read()[:50_000], steps=3)
    assert len(found.losses) == 3
    for spec in (twin, dataclasses.replace(SPEC, style="gpt2")):
        with pytest.raises(ValueError, match="has no dense twin; use llama"):
            dense_twin(spec)
