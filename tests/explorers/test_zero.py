"""The explorer of ZeRO tells at every stage what the costs predict, and advises what is enough."""

import re

import pytest

from shardlab.costs import memory, zero
from shardlab.costs.zero import step as zero_step
from shardlab.explorers import zero as explorers
from tests.explorers.views import idle, number, table

EXPLORER = explorers.explorer()
STATES = EXPLORER.states()
SOME = STATES[::17]  # a prime step: every value of every control occurs


def test_few_hundred_states_and_some_try_every_value():
    assert len(STATES) < 400
    for control in EXPLORER.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view, stage = EXPLORER.view(**state), state["stage"]
    step, rows = explorers.step_at(**state), table(view)
    held = memory.per_rank(step.run.training)
    column = {name: values[stage] for name, values in rows.items()}
    assert number(column["memory"]) == pytest.approx(sum(held.values()), rel=0.006)
    assert number(column["sent by each rank"]) == pytest.approx(
        sum(zero.sent_bytes(step.run.training).values()), rel=0.006
    )
    assert number(column["step"]) == pytest.approx(step.seconds, rel=0.006)
    assert column["waiting"] in view.sentence
    assert column["step"] in view.sentence
    assert ("does not fit" in view.sentence) == (sum(held.values()) > 80e9)
    assert ("mostly waits" in view.sentence) == (step.waiting > 0.5 * step.seconds)
    bars = {bar.name: bar for bar in view.figure.data}
    assert sum(bars[part].x[stage] for part in held) == pytest.approx(sum(held.values()) / 1e9)
    assert sum(bars[part].x[stage] for part in step.parts) == pytest.approx(step.seconds)
    assert bars["waiting"].marker.opacity[stage] == 1


def test_a_lower_stage_that_fits_is_named():
    state = {**EXPLORER.default(), "stage": 3}
    sentence = EXPLORER.view(**state).sentence
    (enough,) = re.findall(r"stage (\d) would be enough", sentence)
    steps = [explorers.step_at(**{**state, "stage": stage}) for stage in range(4)]
    fits = [sum(memory.per_rank(step.run.training).values()) < 80e9 for step in steps]
    assert fits.index(True) == int(enough)


def test_the_batch_that_is_advised_halves_the_waiting_and_half_of_it_does_not():
    seen = 0
    for state in SOME:
        found = re.findall(r"With (\d+) times the batch", EXPLORER.view(**state).sentence)
        if found:
            seen += 1
            shares = []
            for times in (int(found[0]), int(found[0]) // 2):
                step = explorers.step_at(**{**state, "batch": times * state["batch"]})
                shares.append(step.waiting / step.seconds)
            assert shares[0] < 0.5 <= shares[1]
    assert seen


def test_every_control_changes_the_default():
    assert idle(EXPLORER) == []


def test_a_step_is_that_of_the_costs():
    state = {"model": "GPT-2 XL", "stage": 2, "ranks": 8, "batch": 1, "network": explorers.NETWORKS[0]}
    step = explorers.step_at(**state)
    assert zero_step.step(step.run) == step
    assert step.run.tokens_per_sequence == 1024  # GPT-2's context is shorter than the others' sample
