"""Predicted steps of published mixtures: their errors, which nothing was fitted to make small."""

import pytest

from shardlab.costs.published import mixtures
from shardlab.costs.published.steps import MIXTURE_STEPS as STEPS
from shardlab.plan import arguments

ERRORS = {  # as found: every prediction is too fast, and more so the narrower the experts are
    "Mixtral 8x7B, 64 H100": -0.06,
    "DeepSeek-V3, 2048 H800": -0.24,
    "DeepSeek-V3, 256 B200": -0.38,
    "Qwen3-235B-A22B, 64 B200": -0.47,
    "Qwen3-30B-A3B, 16 H100": -0.64,
    "Qwen3-30B-A3B, 8 B200": -0.71,
}


@pytest.mark.parametrize("name", STEPS)
def test_errors_are_those_that_the_book_states(name):
    assert STEPS[name].error == pytest.approx(ERRORS[name], abs=0.01)
    assert STEPS.keys() == ERRORS.keys()


def test_narrower_experts_are_predicted_worse():
    widths = [row.run.training.spec.experts.expert_size for row in STEPS.values()]
    errors = [row.error for row in STEPS.values()]
    assert widths == sorted(widths, reverse=True)
    assert errors == sorted(errors, reverse=True)


def test_deepseeks_layout_is_the_one_of_its_training():
    assert STEPS["DeepSeek-V3, 2048 H800"].run.training.layout == mixtures.LAYOUTS["DeepSeek-V3"]


@pytest.mark.parametrize("row", STEPS.values(), ids=STEPS)
def test_every_row_fills_its_machine_and_has_no_tensor_parallelism(row):
    layout = row.run.training.layout
    assert layout.ranks == row.run.cluster.gpus
    assert layout.tp == 1
    waits = row.predicted.parts["expert parallel"] > 0
    assert waits == (row.run.training.program.expert_overlap == "nothing")  # DeepSeek hid them all


def test_the_shell_says_how_much_longer_steps_took():
    ratios = [row.seconds / row.predicted.seconds for row in STEPS.values()]
    said = f"took {min(ratios):.1f} to {max(ratios):.1f} times as long"
    assert said in arguments.MIXTURES
