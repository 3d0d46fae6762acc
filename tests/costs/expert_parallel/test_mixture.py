"""Whole mixtures: FLOPs, memory and GPU hours are those that their trainers print."""

from dataclasses import replace

import pytest

from shardlab.attention import GroupedAttention
from shardlab.costs import expert_parallel as costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import chips, mixtures, recipes
from shardlab.costs.facts.mixtures import MixtureSpec
from shardlab.costs.published.mixtures import LAYOUTS
from shardlab.layout import Layout
from shardlab.spec import TransformerSpec

V3 = mixtures.published("DeepSeek-V3").spec
PEAK = chips.chip("H100 SXM 80 GB").peak_flops  # an H800's is the same
FP32_GRADIENTS = recipes.RECIPES["mixed, fp32 gradients"]


def per_token(spec, attention="causal"):
    return 3 * sum(costs.flops(spec, sequence=4096, attention=attention).values())


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
    sizes = {"vocab_size": 32, "hidden_size": 24, "num_layers": 3}
    heads = GroupedAttention(num_heads=4, num_kv_heads=2, head_size=6)
    one = MixtureSpec(**sizes, attention=heads, num_experts=1, experts_per_token=1, expert_size=64)
    dense = TransformerSpec(**sizes, context_length=16, num_heads=4, num_kv_heads=2, ffn_size=64, style="llama")
    counted = costs.flops(one, sequence=16, attention="full")
    known = {part: x / 16 for part, x in flops.forward(dense, batch=1, sequence=16).items()}
    assert counted["routed experts"] == known["feed-forward"]
    assert counted["attention"] == known["projections"]
    assert (counted["scores"], counted["head"]) == (known["scores"], known["head"])


def test_hours_of_a_trillion_tokens_are_those_in_print():
    """180K H800 hours, or 3.7 days on 2,048; within 3 % by the share of the peak that this book takes."""
    ours = costs.gpu_hours(V3, tokens=1e12, peak=PEAK)
    assert ours == pytest.approx(180_000, rel=0.03)
    assert ours / 2048 / 24 == pytest.approx(3.7, rel=0.04)
    theirs = costs.gpu_hours(V3, tokens=1e12, peak=PEAK, utilisation=0.3894)  # MFU, Zhao et al., Table 4
    assert theirs == pytest.approx(180_000, rel=0.005)


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Mixtral 8x7B", "DeepSeek-V3", "Kimi K2"])
@pytest.mark.parametrize(("pp", "ep"), [(1, 1), (1, 8), (4, 2), (16, 8)])
def test_all_ranks_of_a_model_hold_its_experts_once_and_the_rest_in_copies(model, pp, ep):
    spec = mixtures.published(model).spec
    layout = Layout(dp=ep, pp=pp, ep=ep)
    held = [costs.held(spec, layout, stage) for stage in range(pp)]
    whole = mixtures.parameters(spec)
    experts = whole.pop("routed experts")
    assert ep * sum(parts["routed experts"] for parts in held) == experts
    assert sum(parts["rest"] for parts in held) == sum(whole.values())


def test_zero_cuts_experts_over_the_ranks_that_hold_the_same():
    layout = Layout(dp=128, pp=16, ep=64, zero=1)
    held = costs.held(V3, layout, 1)
    states = costs.states(V3, layout, stage=1)
    assert states["parameters"] == 2 * sum(held.values())
    assert states["optimizer"] == 12 * (held["routed experts"] / 2 + held["rest"] / 128)
    less = costs.states(V3, replace(layout, cp=2, dp=64), stage=1)
    assert less["optimizer"] == states["optimizer"]


def test_kimi_k2_fills_its_gpus_as_its_report_says():
    """Section 2.4.2: 6 TB for weights and fp32 gradients, and some 30 GB on each of 256 GPUs for all states.

    On many GPUs the states of the optimizer are negligible.
    """
    spec, layout = mixtures.published("Kimi K2").spec, LAYOUTS["Kimi K2"]
    assert 6 * sum(mixtures.parameters(spec).values()) == pytest.approx(6e12, rel=0.03)
    held = [costs.states(spec, layout, FP32_GRADIENTS, stage) for stage in range(layout.pp)]
    without = [parts["parameters"] + parts["gradients"] for parts in held]
    assert sum(without) / len(without) == pytest.approx(30e9, rel=0.15)


def test_without_expert_parallelism_nothing_of_deepseek_fits():
    """16 stages alone leave 250 GB of weights and gradients; 64-way expert parallelism leaves 10."""
    for ep, most in ((1, 250e9), (64, 10e9)):
        parts = costs.states(V3, Layout(dp=128, pp=16, ep=ep, zero=1), FP32_GRADIENTS, stage=1)
        assert parts["parameters"] + parts["gradients"] == pytest.approx(most, rel=0.12)


def test_what_does_not_suit_is_refused():
    with pytest.raises(ValueError, match="256 experts do not split over ep=3 ranks; use ep = 1, 2, 4"):
        costs.held(V3, Layout(dp=3, ep=3))
    with pytest.raises(ValueError, match="tp=2 would cut the experts"):
        costs.held(V3, Layout(tp=2))
    with pytest.raises(ValueError, match="61 layers leave some of pp=62 stages empty"):
        costs.held(V3, Layout(pp=62))
    with pytest.raises(ValueError, match="stage=2"):
        costs.held(V3, Layout(pp=2), 2)
    with pytest.raises(ValueError, match="unknown attention 'half'; known: full, causal"):
        costs.flops(V3, sequence=8, attention="half")
