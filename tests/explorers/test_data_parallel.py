"""The explorer of data parallelism: figure, table and sentence tell what the costs predict."""

import pytest

from shardlab.costs import memory, step
from shardlab.costs.data_parallel import overlap, scaling
from shardlab.explorers import data_parallel as explorers
from tests.explorers.views import number

EXPLORER = explorers.explorer()
STATES = EXPLORER.states()
SOME = STATES[::23]  # a prime step: every value of every control occurs


def table(view):
    return dict(view.table[1:])


def test_some_states_try_every_value():
    for control in EXPLORER.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


def timed(overlapping=True, **state):
    run = explorers.run_at(**state)
    return step.step(run if overlapping else scaling.without_overlap(run))


def test_every_state_has_a_timeline_that_ends_with_the_step():
    for state in STATES:
        taken = timed(**state)
        assert overlap.events(taken.run)[-1].end == pytest.approx(taken.seconds)
        assert len(overlap.messages(taken.run)) <= explorers.BUCKETS


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view, taken = EXPLORER.view(**state), timed(**state)
    rows, held = table(view), memory.per_rank(taken.run.training)
    parts = [number(rows[part]) for part in ("forward and backward", "waiting", "update")]
    assert sum(parts) == pytest.approx(number(rows["step"]), rel=0.02)
    assert number(rows["memory"]) == pytest.approx(sum(held.values()), rel=0.006)
    assert rows["step"] in view.sentence
    assert rows["share of computing"] == f"{100 * taken.computing / taken.seconds:.1f} %"
    assert ("does not fit" in view.sentence) == (sum(held.values()) > 80e9)
    if state["ranks"] > 1:
        assert rows["waiting"] in view.sentence
        share = taken.waiting / taken.seconds
        assert ("Computing decides" in view.sentence) == (share < 0.05)
        assert ("The network decides" in view.sentence) == (share > 0.5)
    bars = {bar.name: bar for bar in view.figure.data}
    drawn = sum(sum(bars[name].x) for name in ("forward", "backward", "update"))
    assert drawn / 100 == pytest.approx(taken.computing / taken.seconds)
    assert sum(bars[part].x[0] for part in held) == pytest.approx(sum(held.values()) / 1e9)


def test_what_overlap_would_leave_is_what_it_leaves():
    state = {"model": "GPT-2 XL", "ranks": 16, "batch": 16, "network": "PCIe, 1 InfiniBand card"}
    without = EXPLORER.view(**state, overlapping=False)
    hidden = table(EXPLORER.view(**state, overlapping=True))["waiting"]
    assert f"With overlap it would wait {hidden}" in without.sentence


def test_a_model_too_large_is_told_what_would_fit():
    state = {"model": "Llama 3 8B", "ranks": 8, "batch": 1, "network": "PCIe, 25 GbE", "overlapping": True}
    sentence = EXPLORER.view(**state).sentence
    assert "128 GB of states" in sentence
    assert "ZeRO-1" in sentence
