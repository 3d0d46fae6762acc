"""The explorers of collectives follow the plans step by step, and mark the algorithm that is fastest."""

import re
from fractions import Fraction

import pytest

from shardlab import exchanges
from shardlab.costs import collectives
from shardlab.costs.collectives import bounds
from shardlab.explorers import collectives as explorers
from tests.explorers.views import number

STEPS, RELATIVES, CROSSOVER = explorers.steps(), explorers.relatives(), explorers.crossover()


@pytest.mark.parametrize("explorer", [STEPS, RELATIVES, CROSSOVER], ids=lambda explorer: explorer.name)
def test_a_page_holds_a_few_hundred_states(explorer):
    assert len(explorer.states()) <= 500


def test_the_longest_plan_can_be_followed_to_its_end():
    for explorer, makes in ((STEPS, explorers.ALL_REDUCES), (RELATIVES, explorers.RELATIVES)):
        last = {control.name: control.values for control in explorer.controls}["step"][-1]
        makes = [make[0] if isinstance(make, tuple) else make for make in makes.values()]
        ranks = {control.name: control.values for control in explorer.controls}["ranks"]
        assert max(len(make(n).steps) for make in makes for n in ranks) == last


@pytest.mark.parametrize("state", STEPS.states()[::31] + RELATIVES.states()[::13], ids=str)
def test_a_step_tells_what_it_shows(state):
    view = explorers.steps_view(**state)
    make = explorers.ALL_REDUCES.get(state["algorithm"]) or explorers.RELATIVES[state["algorithm"]][0]
    plan = make(state["ranks"])
    frames = [width for width in view.figure.data[0].marker.line.width if width > 1]
    step = min(state["step"], len(plan.steps))
    if step:
        moves = plan.steps[step - 1]
        assert view.sentence.startswith(f"<b>Step {step} of {len(plan.steps)}</b>: {len(moves)} message")
        assert len(frames) == sum(len(move.pieces) for move in moves)
        assert ("added" in view.sentence) == (moves[0].action == exchanges.ADD)
    else:
        assert not frames
        assert "Before" in view.sentence
    assert len(view.table) == state["ranks"] + 1


@pytest.mark.parametrize("algorithm", explorers.ALL_REDUCES)
@pytest.mark.parametrize("ranks", explorers.RANKS)
def test_in_the_end_all_is_green_and_the_bytes_are_those_of_the_formula(algorithm, ranks):
    view = explorers.steps_view(algorithm=algorithm, ranks=ranks, step=explorers.LAST_STEP)
    assert len(set(view.figure.data[0].marker.color)) == 1
    formula = collectives.ALL_REDUCES.get(algorithm, collectives.ring_all_reduce)
    sent = formula(1.0, ranks).sent
    assert f"<b>{Fraction(sent).limit_denominator(100)}</b>" in view.sentence


@pytest.mark.parametrize("state", CROSSOVER.states()[::17], ids=str)
def test_the_fastest_is_the_fastest(state):
    view = explorers.crossover_view(**state)
    curves = {trace.name: trace.y for trace in view.figure.data}
    algorithms = [name for name in curves if name in explorers.FORMULAS]
    assert algorithms == [*explorers.FORMULAS]
    for at, best in enumerate(curves["fastest"]):
        assert best == min(curves[name][at] for name in algorithms)
        assert best >= curves["lower bound"][at] * (1 - 1e-12)
    for size, seconds, name, bound in view.table[1:]:
        at = min(range(len(explorers.SIZES)), key=lambda i: abs(explorers.SIZES[i] - number(size)))
        assert number(seconds) == pytest.approx(curves[name][at], rel=0.006)
        assert number(bound) == pytest.approx(curves["lower bound"][at], rel=0.006)
        assert name in view.sentence


def test_the_sentence_tells_where_the_winner_changes():
    view = explorers.crossover_view(ranks=8, link="10 GbE", latency=50)
    size = number(view.sentence.partition("recursive doubling</b> up to ")[2].partition(",")[0])
    costs = {name: formula(1.0, 8) for name, formula in collectives.ALL_REDUCES.items()}
    link = explorers.replace(explorers.hardware.link("10 GbE"), latency=50e-6)
    exact = bounds.meeting(costs["recursive doubling"], costs["halving-doubling"], 1.0, link)
    assert size == pytest.approx(exact, rel=0.006)


@pytest.mark.parametrize(("ranks", "winners"), [(6, 4), (8, 2), (100, 2)])
def test_around_every_change_the_winners_take_turns(ranks, winners):
    wire = explorers.replace(explorers.hardware.link("InfiniBand NDR"), latency=10e-6)
    sentence = explorers.crossover_view(ranks=ranks, link="InfiniBand NDR", latency=10).sentence
    changes = re.findall(r"<b>([\w -]+)</b> up to ([\d.,]+ \w?B)", sentence)
    assert 1 <= len(changes) < winners
    for name, size in changes:
        costs = {each: cost(number(size) * 0.98, ranks) for each, cost in explorers.FORMULAS.items()}
        assert bounds.fastest(costs, wire) == name
