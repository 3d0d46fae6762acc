"""The explorer of pipelines: figure, table and sentence agree, and the advice is the best there is."""

import re

import pytest

from shardlab import schedules
from shardlab.costs.pipeline import timeline
from shardlab.explorers import pipeline as explorers

SCHEDULES = explorers.schedules_explorer()
SOME = SCHEDULES.states()[::13]


def table(view):
    return dict(view.table[1:])


def test_some_states_try_every_value():
    for control in SCHEDULES.controls:
        assert {state[control.name] for state in SOME} == set(control.values)
    assert len(SCHEDULES.states()) < 400


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view = SCHEDULES.view(**state)
    rows, p, m = table(view), state["stages"], state["microbatches"]
    name, chunks = explorers.SCHEDULES[state["schedule"]]
    time, work = rows["time (forward of a stage = 1)"], rows["time that a stage computes"]
    assert work == pytest.approx(m * sum(explorers.DURATIONS[state["durations"]]))
    share = float(rows["bubble, of all time"].split()[0])
    assert share == pytest.approx(100 * (1 - work / time), abs=0.06)
    ideal = float(rows["bubble, of the time that computing takes"].split()[0])
    assert ideal == pytest.approx(100 * (time / work - 1), abs=0.06)
    said = re.search(r"<b>(under 1|\d+) % of all time is bubble</b>", view.sentence)
    assert said[1] == "under 1" or float(said[1]) == pytest.approx(share, abs=0.51)
    bars = [bar for bar in view.figure.data if bar.type == "bar"]
    assert max(base + x for bar in bars for base, x in zip(bar.base, bar.x, strict=True)) == pytest.approx(time)
    schedule = schedules.make(name, p, m, chunks if name in schedules.CHUNKED else None)
    assert sum(len(bar.x) for bar in bars) == sum(map(len, schedule.orders)) <= 400
    fullest = max(float(x) for x in rows["activations of the stages (microbatches)"].split(", "))
    assert f"the activations of {fullest:.3g} of {m} microbatches" in view.sentence
    assert fullest == pytest.approx(max(timeline.play(schedule).peaks()) / chunks, rel=0.006)
    waits = rows["waiting, by the paper's formula"]
    if re.fullmatch(r"[\d.]+", waits):
        inside = rows["waiting of a stage between its first and last action, at most"]
        assert float(waits) == pytest.approx(inside if name in ("ZB-H2", "ZB-V") else time - work, rel=0.001, abs=1e-9)


def test_advice_is_good():
    state = {"stages": 4, "microbatches": 8, "durations": next(iter(explorers.DURATIONS)), "latency": 0.0}
    before = SCHEDULES.view(schedule="1F1B", **state)
    assert "ZB-V, 2 chunks would save 23 % of the time and need no more memory." in before.sentence
    after = SCHEDULES.view(schedule="ZB-V, 2 chunks", **state)
    key = "time (forward of a stage = 1)"
    assert 1 - table(after)[key] / table(before)[key] == pytest.approx(0.23, abs=0.005)
    assert "With 16 microbatches the bubble would be" in after.sentence


def test_taking_turns_cannot_be_helped_by_more_microbatches():
    state = {"stages": 4, "microbatches": 8, "durations": next(iter(explorers.DURATIONS)), "latency": 0.0}
    view = SCHEDULES.view(schedule="one microbatch at a time", **state)
    assert "75 % of all time is bubble</b>, or 300 % of the time that computing takes" in view.sentence
    assert "More microbatches would not help" in view.sentence
