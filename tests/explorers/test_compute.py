"""The explorers of compute: figure, table and sentence tell the same, and their advice is exact."""

import re

import pytest

from shardlab.costs.compute import roofline
from shardlab.costs.facts import hardware
from shardlab.explorers import compute
from tests.explorers.views import number

TIME, ROOF = compute.time_explorer(), compute.roofline_explorer()


def table(view):
    return dict(view.table[1:])


def plain(text):
    return float(text.replace(",", "").split()[0])


@pytest.mark.parametrize("explorer", [TIME, ROOF], ids=lambda explorer: explorer.name)
def test_some_states_try_every_value(explorer):
    for control in explorer.controls:
        assert {state[control.name] for state in explorer.states()[::37]} == set(control.values)


@pytest.mark.parametrize("state", TIME.states()[::37], ids=str)
def test_time_figure_table_and_sentence_agree(state):
    view = TIME.view(**state)
    rows = table(view)
    days, hours = plain(rows["days"]), plain(rows["GPU-hours"])
    assert hours == pytest.approx(days * 24 * state["chips"], rel=2e-3)
    (here,) = (trace for trace in view.figure.data if trace.mode == "markers")
    assert here.y[0] == pytest.approx(days, rel=1e-3)
    curve = {trace.name: trace for trace in view.figure.data}[state["chip"]]
    assert curve.y[compute.COUNTS.index(state["chips"])] == pytest.approx(here.y[0])
    assert f"<b>{here.name}</b>" in view.sentence
    states = 16 * plain(rows["parameters"])
    held = hardware.chip(state["chip"]).memory * state["chips"]
    assert ("do not fit" in view.sentence) == (states > held)


def test_gpt_3_on_1024_a100s_takes_about_the_month_that_is_published():
    """Narayanan et al. 2021: 34 days at 140 TFLOP/s with recomputation, 105 without, which are 34 %."""
    rows = table(TIME.view(**{**TIME.default(), "utilisation": 30}))
    assert plain(rows["days"]) * 30 / (100 * 105 / 312) == pytest.approx(34, rel=0.03)


def test_a_long_training_is_told_how_many_chips_would_do():
    sentence = TIME.view(
        model="Llama 3 405B", tokens="15 trillion", chip="H100 SXM 80 GB", chips=4096, utilisation=40
    ).sentence
    needed = int(re.search(r"([\d,]+) of these chips would take 90 days", sentence)[1].replace(",", ""))
    chips = {"model": "Llama 3 405B", "tokens": "15 trillion", "chip": "H100 SXM 80 GB", "utilisation": 40}
    days = compute.training(**chips, chips=needed).days
    assert days <= 90 < compute.training(**chips, chips=needed - 1).days


@pytest.mark.parametrize("state", ROOF.states()[::37], ids=str)
def test_roofline_figure_table_and_sentence_agree(state):
    view = ROOF.view(**state)
    rows = table(view)
    slowest = max(number(rows["arithmetic"]), number(rows["memory"]))
    assert number(rows["shortest time"]) == slowest
    (here,) = (trace for trace in view.figure.data if trace.name == "operation")
    chip = hardware.chip(state["chip"])
    assert here.y[0] == pytest.approx(roofline.attainable(here.x[0], chip, state["precision"]))
    decides = "arithmetic decides" if here.x[0] >= roofline.ridge(chip, state["precision"]) else "memory decides"
    assert f"<b>{decides}</b>" in view.sentence
    enough = re.search(r"From ([\d,]+) rows on", view.sentence)
    if enough:
        rows_needed = int(enough[1].replace(",", ""))
        assert rows_needed > state["rows"]
        element = roofline.ELEMENT[state["precision"]]
        more = roofline.matmul(rows_needed, state["inputs"], state["outputs"], element=element)
        assert roofline.bound(more, chip, state["precision"]) == "arithmetic"
