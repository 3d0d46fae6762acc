"""Predicted steps of published mixtures: their errors, which nothing was fitted to make small."""

import pytest

from shardlab.costs.published import mixtures
from shardlab.costs.published.steps import MIXTURE_STEPS as STEPS
from shardlab.plan import arguments

ERRORS = {  # as found
    "Mixtral 8x7B, 64 H100": -0.06,
    "gpt-oss-120b, 64 H100": -0.33,
    "gpt-oss-120b, 64 B200": -0.10,
    "gpt-oss-120b, 64 GB200": -0.40,
    "DeepSeek-V3, 2048 H800": -0.24,
    "DeepSeek-V3, 256 B200": -0.27,
    "Qwen3-235B-A22B, 256 B200": -0.38,
    "Qwen3-235B-A22B, 256 GB200": -0.16,
    "Qwen3-30B-A3B, 16 H100": -0.65,
    "Qwen3-30B-A3B, 16 H100, ep 16": 0.15,
    "Qwen3-30B-A3B, 8 H100": 0.14,
    "Qwen3-30B-A3B, 8 B200": -0.70,
    "Qwen3-30B-A3B, 8 GB200": -0.26,
}


@pytest.mark.parametrize("name", STEPS)
def test_errors_are_those_that_the_book_states(name):
    assert STEPS[name].error == pytest.approx(ERRORS[name], abs=0.01)
    assert STEPS.keys() == ERRORS.keys()


def _tokens(row):
    """Tokens of a microbatch that reach each expert, where all get as many."""
    run, experts = row.run.training, row.run.training.spec.experts
    return run.tokens * run.layout.ep * experts.per_token // experts.num_experts


def test_the_worst_predictions_are_of_few_tokens_in_narrow_experts():
    """As the pages say: 2,048 tokens in each of Qwen3-30B's take three times as long as predicted."""
    worst = sorted(STEPS, key=lambda name: STEPS[name].error)[:2]
    assert worst == ["Qwen3-30B-A3B, 8 B200", "Qwen3-30B-A3B, 16 H100"]
    assert {_tokens(STEPS[name]) for name in worst} == {2048}
    assert [name for name, row in STEPS.items() if row.error > 0] == [
        "Qwen3-30B-A3B, 16 H100, ep 16",
        "Qwen3-30B-A3B, 8 H100",
    ]
    fours = [row.error for name, row in STEPS.items() if "30B" in name and row.microbatch == 4]
    assert max(map(abs, fours)) < 1 / 3


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
