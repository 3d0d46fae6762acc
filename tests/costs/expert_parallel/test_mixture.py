"""Whole mixtures: FLOPs are those that their trainers print."""

import pytest

from shardlab.costs import expert_parallel as costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import mixtures
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

V3 = mixtures.published("DeepSeek-V3").spec


def per_token(spec, pairs="causal"):
    return 3 * sum(costs.flops(spec, sequence=4096, pairs=pairs).values())


@pytest.mark.parametrize(("model", "printed"), [("DeepSeek-V2", 155), ("DeepSeek-V3", 250)])
def test_flops_of_a_token_are_those_in_print(model, printed):
    """Zhao et al. 2025, Table 2 (https://arxiv.org/abs/2505.09343): GFLOPs of a token, training on 4,096."""
    assert per_token(mixtures.published(model).spec) / 1e9 == pytest.approx(printed, rel=0.003)


def test_all_pairs_of_tokens_and_half_of_them_are_both_in_print():
    """The same, Table 4: 432 TFLOP/s not causal, 385 causal, of 2,048 GPUs with 272.80 billion tokens a day."""
    rate = 272.80e9 / 86_400 / 2048
    assert per_token(V3, "full") * rate / 1e12 == pytest.approx(432, rel=0.005)
    assert per_token(V3) * rate / 1e12 == pytest.approx(385, rel=0.005)


def test_one_expert_for_all_tokens_is_the_dense_model():
    sizes = {"vocab_size": 32, "context_length": 16, "hidden_size": 24, "num_layers": 3, "style": "llama"}
    heads = {"num_heads": 4, "num_kv_heads": 2}
    one = TransformerSpec(**sizes, **heads, experts=Experts(num_experts=1, per_token=1, expert_size=64))
    counted = costs.flops(one, sequence=16, pairs="full")
    known = flops.forward(TransformerSpec(**sizes, **heads, ffn_size=64), batch=1, sequence=16)
    assert counted["routed experts"] == known["feed-forward"] / 16


@pytest.mark.parametrize("model", mixtures.PUBLISHED)
def test_parts_of_a_token_add_up_to_those_of_its_sequence(model):
    spec = mixtures.published(model).spec
    for pairs in ("full", "causal"):
        whole = sum(flops.forward(spec, batch=1, sequence=4096, pairs=pairs).values())
        parts = costs.flops(spec, sequence=4096, pairs=pairs)
        assert sum(parts.values()) == pytest.approx(whole / 4096, rel=1e-12)
        routers = spec.experts.num_experts * spec.hidden_size * (spec.num_layers - spec.num_dense)
        assert parts["routers"] == pytest.approx(2 * routers, rel=1e-6)


def test_what_does_not_suit_is_refused():
    with pytest.raises(ValueError, match="unknown pairs 'half'; known: full, causal"):
        costs.flops(V3, sequence=8, pairs="half")
    with pytest.raises(ValueError, match=r"no experts; count it with models\.parameters"):
        costs.flops(V3.dense, sequence=8)
