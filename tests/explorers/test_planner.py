"""The explorer of the planner draws, describes and tabulates the same plans."""

import pytest

from shardlab.costs.planning import plans
from shardlab.explorers import planner
from tests.explorers.views import number

BEST = planner.best_plans()
BEST_STATES = BEST.states()[::31]


def test_a_page_holds_a_few_hundred_states():
    assert len(BEST.states()) <= 300


@pytest.mark.parametrize("state", BEST_STATES, ids=str)
def test_the_best_plans_are_drawn_told_and_tabled_alike(state):
    view = BEST.view(**state)
    table = {name: text for name, text, *_ in view.table[1:]}
    if not table["fits"]:
        assert "Nothing fits" in view.sentence
        assert "too much" in view.sentence
        return
    timed = [(name, number(text)) for name, text, *_ in view.table[1:] if isinstance(text, str)]
    assert 1 <= len(timed) <= planner.SHOWN
    assert view.sentence.startswith(f"<b>{timed[0][0]}</b>")
    assert f"{table['fits']:,} of " in view.sentence
    for row, (_, seconds) in enumerate(timed):
        assert sum(trace.x[row] for trace in view.figure.data) == pytest.approx(seconds, rel=6e-3)
    assert [seconds for _, seconds in timed] == sorted(seconds for _, seconds in timed)


def test_a_trillion_tokens_cost_what_their_gpu_hours_and_watts_do():
    """512 H100 at 2 dollars an hour and 700 W each: the dollars and the energy follow from the days."""
    view = BEST.view(**BEST.default())
    _, _, days, dollars, energy = view.table[1]
    hours = 512 * 24 * float(days)
    assert float(dollars.replace(",", "")) == pytest.approx(2 * hours, rel=0.1)
    assert float(energy.replace(",", "")) == pytest.approx(700e-6 * hours, rel=0.1)
    assert f"{days} days, {dollars} dollars at 2 per GPU hour, and {energy} MWh" in view.sentence


def test_reasons_are_told_in_words():
    view = BEST.view(**BEST.default())
    assert any(words in view.sentence for words in plans.REASONS.values())
