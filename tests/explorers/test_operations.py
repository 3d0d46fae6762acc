"""The explorer of operations says what the formulas say, and every control changes what it says."""

import re

import pytest

from shardlab.costs.operations import Reliability, between_failures
from shardlab.explorers import operations as explorers
from tests.explorers.views import idle, sentence_and_table, table

GOODPUT = explorers.goodput()


def test_every_control_changes_what_is_said():
    assert idle(GOODPUT, sentence_and_table) == []


@pytest.mark.parametrize("state", GOODPUT.states()[::97], ids=str)
def test_the_losses_add_up_to_those_of_the_sentence(state):
    view = GOODPUT.view(**state)
    shares = {name: float(row[0].removesuffix(" %")) for name, row in table(view).items()}
    together = shares.pop("together")
    assert sum(shares.values()) == pytest.approx(together, abs=0.16)
    lost, best = map(float, re.search(r"<b>(.*?) %</b>.*, (.*?) %\.", view.sentence).groups())
    assert lost == together >= best
    marked = next(trace for trace in view.figure.data if trace.name == "chosen")
    assert marked.y[0] == pytest.approx(lost, abs=0.06)


def test_a_save_in_the_background_loses_less_by_saving_and_more_by_repeating():
    still, behind = (table(GOODPUT.view(**GOODPUT.default() | {"saves": saves})) for saves in explorers.SAVES)
    share = {name: [float(rows[name][0].removesuffix(" %")) for rows in (still, behind)] for name in still}
    assert share["saving"][0] > 10 * share["saving"][1]
    assert share["repeating"][0] < share["repeating"][1]
    assert share["together"][0] > share["together"][1]


def test_the_default_is_the_machine_of_llama_3():
    run = Reliability(between=between_failures(16_384, 50_000), save=60.0, restart=600.0)
    said = GOODPUT.view(**GOODPUT.default()).sentence
    assert f"<b>{100 * (1 - run.goodput(1800.0)):.1f} %</b>" in said
