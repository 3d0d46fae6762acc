"""The utilisation of published mixtures follows from their own numbers and our FLOPs."""

import pytest

from shardlab.costs.facts import mixtures as facts
from shardlab.costs.published import mixtures

CLAIMS = [run for run in mixtures.RUNS.values() if run.claimed_mfu is not None]


@pytest.mark.parametrize("run", CLAIMS, ids=lambda run: run.name)
def test_their_utilisation_from_their_tokens(run):
    assert run.mfu == pytest.approx(run.claimed_mfu, rel=0.007)


def test_deepseeks_hours_and_its_step_are_the_same_training():
    hours, step = (mixtures.run(name) for name in ("DeepSeek-V3, hours", "DeepSeek-V3, 2048 H800, ep=64"))
    assert hours.tokens_per_second == pytest.approx(step.tokens_per_second, rel=0.003)
    assert mixtures.run("DeepSeek-V2, hours").mfu == pytest.approx(0.252, abs=0.001)


@pytest.mark.parametrize("model", mixtures.LAYOUTS)
def test_layouts_have_no_tensor_parallelism_and_divide_the_experts(model):
    layout = mixtures.LAYOUTS[model]
    assert layout.tp == 1
    assert facts.published(model).spec.experts.num_experts % layout.ep == 0
    assert mixtures.LAYOUTS["DeepSeek-V3"].ranks == 2048


def test_an_unknown_run_is_refused():
    with pytest.raises(ValueError, match="no published run is named 'x'; known: DeepSeek-V2, hours"):
        mixtures.run("x")
