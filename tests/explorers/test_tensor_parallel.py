"""The explorers of tensor parallelism tell what cuts and costs say, and refuse what does not split."""

import re

import pytest

from shardlab.costs import memory
from shardlab.costs import tensor_parallel as costs
from shardlab.costs.facts import models
from shardlab.explorers import tensor_parallel as explorers
from shardlab.sharding import cuts
from shardlab.sharding.layout import tensor_degrees
from tests.explorers.views import idle, number, table

PIECES, LAYERS = explorers.pieces(), explorers.layers()
SOME = LAYERS.states()[::13]  # a prime step: every value of every control occurs


def facts(state):
    return explorers.layer_on(**state)


def test_few_hundred_states_and_some_try_every_value():
    assert len(PIECES.states()) + len(LAYERS.states()) < 500
    for control in LAYERS.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("state", PIECES.states(), ids=str)
def test_what_splits_is_drawn_and_what_does_not_says_what_would(state):
    view, spec = PIECES.view(**state), models.published(state["model"]).spec
    works = tensor_degrees(spec)
    if state["tp"] not in works:
        assert "<b>Impossible</b>" in view.sentence
        advised = view.sentence.partition("use tp = ")[2]
        assert [int(each) for each in re.findall(r"\d+", advised)] == works
        return
    rows, held = table(view), cuts.num_parameters(spec, state["tp"])
    whole = models.num_parameters(spec)
    assert rows["all parameters"] == [f"{whole:,}", f"{held:,}"]
    (stated,) = re.findall(r"<b>([\d.,]+ [MGT]B)</b>", view.sentence)
    assert number(stated) == pytest.approx(16 * held, rel=0.006)
    outputs, inputs = (int(each.replace(",", "")) for each in rows["layer: mlp.up"][1].split(" x "))
    assert (outputs, inputs) == (spec.ffn // state["tp"], spec.hidden_size)


def test_shared_key_heads_are_told():
    assert "4 ranks share each of the 8 key/value heads" in PIECES.view(model="Llama 3 8B", tp=32).sentence
    assert "share" not in PIECES.view(model="Llama 3 8B", tp=8).sentence


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view, layer = LAYERS.view(**state), facts(state)
    rows = {name: value for name, (value,) in table(view).items()}
    parts = [number(rows[part]) for part in layer.parts]
    assert sum(parts) == pytest.approx(number(rows["layer"]), rel=0.02)
    assert number(rows["layer"]) == pytest.approx(layer.seconds, rel=0.006)
    assert number(rows["sent by each rank"]) == pytest.approx(costs.sent_bytes(layer.training), rel=0.006)
    assert number(rows["memory"]) == pytest.approx(memory.total(layer.training), rel=0.006)
    assert rows["layer"] in view.sentence
    fits = memory.total(layer.training) <= layer.chip.memory
    assert ("does not fit" in view.sentence) == (not fits)
    if state["tp"] > 1:
        share = layer.waiting / layer.seconds
        assert rows["waiting"] in view.sentence
        assert ("A rank computes" in view.sentence) == (share < 0.1)
        assert ("mostly waits" in view.sentence) == (share > 0.5)
        leaves = state["tp"] > (72 if "rack" in state["machine"] else 8)
        assert ("leave the server" in view.sentence) == leaves
    bars = {bar.name: bar for bar in view.figure.data}
    place = explorers.RANKS.index(state["tp"])
    assert sum(bars[part].y[place] for part in layer.parts) == pytest.approx(100)
    assert bars["waiting"].y[place] == pytest.approx(100 * layer.waiting / layer.seconds)


@pytest.mark.parametrize("state", SOME, ids=str)
def test_what_would_be_enough_is_enough_and_less_is_not(state):
    sentence = LAYERS.view(**state).sentence
    found = re.search(r"tp = (\d+) would be enough", sentence)
    if found is None:
        return
    enough = int(found[1])
    held = {tp: memory.total(facts({**state, "tp": tp}).training) for tp in explorers.RANKS}
    capacity = facts(state).chip.memory
    assert held[enough] <= capacity
    assert all(nbytes > capacity for tp, nbytes in held.items() if tp < enough)


def test_leaving_the_server_shows_where_it_matters():
    default = LAYERS.default()
    inside, outside = (facts({**default, "tp": tp}) for tp in (8, 16))
    rack = facts({**default, "tp": 16, "machine": "NVL72 rack"})
    assert inside.link.kind == rack.link.kind == "NVLink"
    assert outside.link.kind == "network"


def test_every_control_changes_the_default():
    for explorer in (PIECES, LAYERS):
        assert idle(explorer) == []
