"""The explorer of ZeRO tells at every stage what the costs predict, and advises what is enough."""

import re

import pytest

from shardlab.costs import memory, zero
from shardlab.costs.step import step
from shardlab.explorers import zero as explorers
from tests.explorers.views import idle, number, table

EXPLORER = explorers.explorer()
STATES = EXPLORER.states()
SOME = STATES[::17]  # a prime step: every value of every control occurs


def timed(**state):
    return step(explorers.run_at(**state))


def test_few_hundred_states_and_some_try_every_value():
    assert len(STATES) < 400
    for control in EXPLORER.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view, stage = EXPLORER.view(**state), state["stage"]
    each, rows = timed(**state), table(view)
    held = memory.per_rank(each.run.training)
    column = {name: values[stage] for name, values in rows.items()}
    assert number(column["memory"]) == pytest.approx(sum(held.values()), rel=0.006)
    assert number(column["sent by each rank"]) == pytest.approx(
        sum(zero.sent_bytes(each.run.training).values()), rel=0.006
    )
    assert number(column["step"]) == pytest.approx(each.seconds, rel=0.006)
    assert column["waiting"] in view.sentence
    assert column["step"] in view.sentence
    assert column["share of computing"] == f"{100 * each.computing / each.seconds:.1f} %"
    assert ("does not fit" in view.sentence) == (sum(held.values()) > 80e9)
    assert ("mostly waits" in view.sentence) == (each.waiting > 0.5 * each.seconds)
    bars = {bar.name: bar for bar in view.figure.data}
    assert sum(bars[part].x[stage] for part in held) == pytest.approx(sum(held.values()) / 1e9)
    assert sum(bars[part].x[stage] for part in ("computing", "update", "waiting")) == pytest.approx(each.seconds)
    assert bars["waiting"].marker.opacity[stage] == 1


def test_a_lower_stage_that_fits_is_named():
    state = {**EXPLORER.default(), "stage": 3}
    sentence = EXPLORER.view(**state).sentence
    (enough,) = re.findall(r"stage (\d) would be enough", sentence)
    steps = [timed(**{**state, "stage": stage}) for stage in range(4)]
    fits = [sum(memory.per_rank(each.run.training).values()) < 80e9 for each in steps]
    assert fits.index(True) == int(enough)


def test_the_batch_that_is_advised_halves_the_waiting_and_half_of_it_does_not():
    seen = 0
    for state in SOME:
        found = re.findall(r"With (\d+) times the batch", EXPLORER.view(**state).sentence)
        if found:
            seen += 1
            shares = []
            for times in (int(found[0]), int(found[0]) // 2):
                each = timed(**{**state, "batch": times * state["batch"]})
                shares.append(each.waiting / each.seconds)
            assert shares[0] < 0.5 <= shares[1]
    assert seen


def test_every_control_changes_the_default():
    assert idle(EXPLORER) == []
