"""The explorers of expert parallelism tell in every state what the costs predict."""

import re

import pytest

from shardlab.costs.facts import mixtures, nodes
from shardlab.costs.step import experts
from shardlab.explorers import expert_parallel as explorers
from tests.explorers.views import idle, number, sentence_and_table, table

ROUTING, MACHINE = explorers.routing_explorer(), explorers.machine_explorer()
ROUTED = [state for state in ROUTING.states() if state["balance"] != "a learned bias"][::5]
SOME = MACHINE.states()[::7]


def test_few_hundred_states_and_some_try_every_value():
    assert len(ROUTING.states()) + len(MACHINE.states()) < 400
    for control in MACHINE.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("explorer", [ROUTING, MACHINE], ids=["routing", "machine"])
def test_every_control_changes_the_default(explorer):
    assert idle(explorer, sentence_and_table) == []


@pytest.mark.parametrize("state", ROUTED, ids=str)
def test_every_choice_is_computed_or_dropped_and_the_slowest_rank_is_named(state):
    view, rows = ROUTING.view(**state), table(ROUTING.view(**state))
    computed, over = ([row[column] for row in rows.values()] for column in (1, 2))
    assert sum(computed) + sum(over) == explorers.TOKENS * state["per_token"]
    factor = max(computed) * state["ep"] / (explorers.TOKENS * state["per_token"])
    assert f"<b>{factor:.2f} times</b>" in view.sentence
    assert f"rank {computed.index(max(computed))}," in view.sentence
    assert ("find no slot" in view.sentence) == bool(sum(over))
    if state["balance"] == "capacity 1.25":
        assert factor <= explorers.CAPACITY + 0.1  # slots are whole tokens
    else:
        assert not sum(over)


def factor(**state):
    return float(re.search(r"<b>([\d.]+) times", ROUTING.view(**{**ROUTING.default(), **state}).sentence)[1])


def test_a_bias_helps_and_drops_nothing():
    before, after = (factor(balance=balance, skew="few popular") for balance in ("nothing", "a learned bias"))
    assert before > 2
    assert after < 1.3
    assert "no slot" not in ROUTING.view(**{**ROUTING.default(), "balance": "a learned bias"}).sentence


def test_a_rank_of_many_experts_is_more_even_than_an_expert():
    assert factor(skew="all alike", ep=4, experts=64) < factor(skew="all alike", ep=8, experts=16)


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view = MACHINE.view(**state)
    rows = table(view)
    states = sum(number(rows[part][0]) for part in ("parameters", "gradients", "optimizer"))
    assert number(rows["states"][0]) == pytest.approx(states, rel=0.01)
    capacity = nodes.node(state["machine"]).chip.memory
    assert ("do not fit" in view.sentence) == (number(rows["states"][0]) > capacity)
    assert ("exposed" in view.sentence) == (number(rows["all-to-all, exposed"][0]) > 0)
    bars = {bar.name: bar for bar in view.figure.data}
    servers = explorers.cluster(state["machine"])
    seconds = experts.forward(_training(**state), servers)
    for part, value in seconds.items():
        assert 1e3 * number(rows[part][0]) == pytest.approx(bars[part].x[0], rel=0.006)
        assert bars[part].x[0] == pytest.approx(1e3 * value)
    inside = number(rows["dispatch and combine, across"][0]) == 0
    assert ("on one NVSwitch" in view.sentence) == inside
    assert " fit" not in view.sentence.replace("do not fit", "")  # states alone never tell that all fits


def _training(machine, **state):
    return explorers.training(**state)


def test_the_mixtures_have_the_same_active_experts_and_one_of_them_is_deepseek_v3():
    active = {
        mixtures.active_parameters(explorers.mixture(experts, chosen))["routed experts"]
        for experts in (64, 256)
        for chosen in (2, 8)
    }
    assert len(active) == 1
    assert explorers.mixture(256, 8) == mixtures.published(explorers.MODEL).spec


def test_a_rack_hides_what_servers_expose():
    wide = {**MACHINE.default(), "overlap": "another microbatch"}
    assert "exposed" in MACHINE.view(**wide).sentence
    assert "exposed" not in MACHINE.view(**{**wide, "machine": "NVL72 rack"}).sentence
