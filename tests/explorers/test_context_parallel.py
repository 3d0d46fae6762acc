"""The explorers of context parallelism tell in every state what the costs predict, and find the longest that fits."""

import re

import pytest

from shardlab.costs import context_parallel as costs
from shardlab.costs.facts import hardware
from shardlab.explorers import context_parallel as explorers
from shardlab.sharding import sequences
from tests.explorers.views import idle, number, sentence_and_table, table

RING, LENGTH = explorers.ring_explorer(), explorers.length_explorer()
SOME = LENGTH.states()[::7]
CAPACITY = hardware.chip(explorers.CHIP).memory


def test_few_hundred_states_and_some_try_every_value():
    assert len(RING.states()) + len(LENGTH.states()) < 400
    for control in LENGTH.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("explorer", [RING, LENGTH], ids=["ring", "length"])
def test_every_control_changes_the_default(explorer):
    assert idle(explorer, sentence_and_table) == []


@pytest.mark.parametrize("state", RING.states(), ids=str)
def test_the_ring_counts_the_pairs_of_the_costs(state):
    view = RING.view(**state)
    rows = table(view)
    together = [row[-1] for row in rows.values()]
    assert all(sum(row[:-1]) == row[-1] for row in rows.values())
    if state["texts"] == "one document":
        length = explorers.PARTS * explorers.RING
        places = sequences.place(length, explorers.RING, state["placement"])
        assert together == [sum(query + 1 for run in runs for query in run) for runs in places]
    idle = sum(row[state["turn"]] == 0 for row in rows.values())
    assert (f"{idle} of {explorers.RING} ranks have nothing" in view.sentence) == bool(idle)
    assert f"{max(together):,} pairs" in view.sentence


def test_contiguous_ranks_wait_and_zig_zag_ranks_do_not_unless_documents_end():
    def together(**state):
        return {row[-1] for row in table(RING.view(**{**RING.default(), **state})).values()}

    assert len(together(placement="zig-zag")) == 1
    assert len(together(placement="contiguous")) == explorers.RING
    assert len(together(placement="zig-zag", texts="three documents")) > 1


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view = LENGTH.view(**state)
    tokens, heads = explorers.LENGTHS[state["length"]], explorers.HEADS[state["heads"]]
    held = costs.held(explorers.training(tokens, state["ranks"], heads))
    rows = table(view)
    assert number(rows["memory"][0]) == pytest.approx(sum(held.values()), rel=0.006)
    assert ("do not fit" in view.sentence) == (sum(held.values()) > CAPACITY)
    bars = {bar.name: bar for bar in view.figure.data}
    assert sum(bars[part].x[0] for part in held) == pytest.approx(sum(held.values()) / 1e9)
    seconds = explorers.times(tokens, state["ranks"], heads, state["link"])
    assert number(rows["messages, exposed"][0]) == pytest.approx(seconds["messages, exposed"], rel=0.006)
    assert ("exposed" in view.sentence) == (seconds["messages, exposed"] > 0)


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_longest_fits_and_a_little_more_does_not(ranks):
    most = explorers.longest(ranks, 8)
    together = [sum(costs.held(explorers.training(most + more, ranks, 8)).values()) for more in (0, 1024 * ranks)]
    assert together[0] <= CAPACITY < together[1]
    sentence = LENGTH.view(**{**LENGTH.default(), "ranks": ranks}).sentence
    (said,) = re.findall(r"at most ([\d,]+) tokens fit", sentence)
    assert int(said.replace(",", "")) == most


def test_one_rank_has_no_room_for_the_states():
    assert explorers.longest(1, 8) == 0
    assert "no length fits" in LENGTH.view(**{**LENGTH.default(), "ranks": 1}).sentence
