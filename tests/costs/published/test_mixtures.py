"""The utilisation that trainers of mixtures print follows from their own tokens and our FLOPs."""

import pytest

from shardlab.costs.compute import flops
from shardlab.costs.facts import mixtures as facts
from shardlab.costs.facts.hardware import chip
from shardlab.costs.published import mixtures
from shardlab.costs.published.steps import MIXTURE_STEPS

# Tokens/s and model TFLOP/s of one GPU:
# https://docs.nvidia.com/nemo/megatron-bridge/latest/performance-summary.html (25.11)
BRIDGE = [
    ("DeepSeek-V3", 3848, 961),
    ("DeepSeek-V3", 3139, 782),
    ("Qwen3-235B-A22B", 6131, 907),
    ("Qwen3-235B-A22B", 4916, 728),
    ("Qwen3-235B-A22B", 1575, 233),
    ("Qwen3-30B-A3B", 28934, 666),
    ("Qwen3-30B-A3B", 23766, 547),
    ("Qwen3-30B-A3B", 5275, 121),
]
H800 = chip("H100 SXM 80 GB").peak_flops  # the same arithmetic, see `facts.hardware`
STEP = 272.80e9 / 86_400 / 2048  # tokens/s of one H800: Zhao et al. 2025, Table 4 (https://arxiv.org/abs/2505.09343)


def per_token(model, pairs="causal"):
    spec = facts.published(model).spec
    return flops.model_flops(spec, batch=1, sequence=4096, pairs=pairs) / 4096


@pytest.mark.parametrize(("model", "rate", "printed"), BRIDGE)
def test_their_speed_from_their_tokens(model, rate, printed):
    assert per_token(model) * rate / 1e12 == pytest.approx(printed, rel=0.007)


@pytest.mark.parametrize(("model", "printed"), [("DeepSeek-V2", 155), ("DeepSeek-V3", 250)])
def test_flops_of_a_token_are_those_in_print(model, printed):
    """Zhao et al., Table 2: GFLOPs of a token, training on 4,096."""
    assert per_token(model) / 1e9 == pytest.approx(printed, rel=0.003)


def test_all_pairs_of_tokens_and_half_of_them_are_both_in_print():
    """Zhao et al., Table 4: 432 TFLOP/s not causal, 385 causal, which are 38.94 % of the peak."""
    assert per_token("DeepSeek-V3", "full") * STEP / 1e12 == pytest.approx(432, rel=0.005)
    assert per_token("DeepSeek-V3") * STEP / 1e12 == pytest.approx(385, rel=0.005)
    assert per_token("DeepSeek-V3") * STEP / H800 == pytest.approx(0.3894, rel=0.007)


def test_deepseeks_hours_and_its_step_are_the_same_training():
    """DeepSeek-V2 took 172,800 hours for 10^12 tokens: section 3.2.3 of https://arxiv.org/abs/2405.04434."""
    hours = 1e12 / (3600 * MIXTURE_STEPS["DeepSeek-V3, 2048 H800"].hours)
    assert hours == pytest.approx(STEP, rel=0.003)
    v2 = 1e12 / (172_800 * 3600)
    assert per_token("DeepSeek-V2") * v2 / H800 == pytest.approx(0.252, abs=0.001)


@pytest.mark.parametrize("model", mixtures.LAYOUTS)
def test_layouts_have_no_tensor_parallelism_and_divide_the_experts(model):
    layout = mixtures.LAYOUTS[model]
    assert layout.tp == 1
    assert facts.published(model).spec.experts.num_experts % layout.ep == 0
    assert mixtures.LAYOUTS["DeepSeek-V3"].ranks == 2048
