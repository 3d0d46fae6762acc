"""The explorer of a trainer and a generator: its parts add up to its steps, and its texts to their number."""

import re

import pytest

from shardlab.explorers import generation as explorers
from tests.explorers.views import idle, number, table

EXPLORER = explorers.explorer()
STATES = EXPLORER.states()
SOME = STATES[::7]  # a prime step: every value of every control occurs


@pytest.mark.parametrize("state", SOME, ids=str)
def test_parts_add_up_to_a_step_of_all_gpus(state):
    view = EXPLORER.view(**state)
    names, *rows = view.table
    for column in range(1, len(names)):
        parts = sum(float(row[column].replace(",", "")) for row in rows[:-1])
        assert parts == pytest.approx(state["gpus"] * number(rows[-1][column]), rel=0.01)
    assert rows[-1][1 + (state["generators"] != "none")] in view.sentence


def test_lengths_have_the_mean_and_the_spread_that_are_said():
    for spread in explorers.SPREADS.values():
        each = explorers.lengths(2000, spread)
        assert len(each) == explorers.TEXTS
        mean = sum(each) / len(each)
        assert mean == pytest.approx(2000, rel=0.01)
        deviation = (sum((x - mean) ** 2 for x in each) / len(each)) ** 0.5
        assert deviation == pytest.approx(spread * mean, rel=0.06)


def test_what_does_not_fit_is_said_and_the_best_is_shown():
    state = {**EXPLORER.default(), "model": "Llama 3 70B", "gpus": 32, "generators": "3/4"}
    view = EXPLORER.view(**state)
    assert "do not fit</b> into 8 GPUs" in view.sentence
    (best,) = re.findall("apart with (.*?) it would", view.sentence)
    assert table(view)["one step"] == table(EXPLORER.view(**{**state, "generators": best}))["one step"]


def test_every_control_changes_the_default():
    assert idle(EXPLORER) == []
