"""The explorer of the title page: figure, table and sentence agree in every state that is tried."""

import re

import pytest

from shardlab.explorers import title
from tests.explorers.views import idle, number

TITLE = title.explorer()


@pytest.mark.parametrize("state", TITLE.states()[::7], ids=str)
def test_the_title_agrees_with_itself(state):
    view = TITLE.view(**state)
    seconds = {int(gpus): time for gpus, time, _ in view.table[1:]}
    assert f"<b>{seconds[state['gpus']]}</b>" in view.sentence
    one, many = number(seconds[1]), number(seconds[state["gpus"]])
    gain = re.search(r"([\d.]+) times as fast", view.sentence)
    assert gain is None if state["gpus"] == 1 else float(gain[1]) == pytest.approx(one / many, rel=0.02)
    bars = {bar.name: bar for bar in view.figure.data}
    assert [a + b for a, b in zip(bars["computing"].y, bars["waiting"].y, strict=True)] == pytest.approx([100] * 10)
    held = sum(bars[part].x[0] for part in ("parameters", "gradients", "optimizer", "activations"))
    assert ("does not fit" in view.sentence) == (held > 80)


def test_every_control_changes_the_title():
    assert idle(TITLE) == []
