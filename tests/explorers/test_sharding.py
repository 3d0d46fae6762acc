"""The explorer of cuts says what the rules say, and each repair holds."""

import re

import pytest

from shardlab.explorers import sharding as explorers
from shardlab.sharding.types import rules
from shardlab.sharding.types.redistribution import redistribute, redistribution
from shardlab.sharding.types.states import local_shape, parse
from tests.explorers.views import idle, number, table

CUTS = explorers.cuts()
STATES = CUTS.states()
SOME = STATES[::7]  # every value of every control occurs


def refused(factors):
    try:
        rules.product("B S f", factors)
    except rules.Refused as error:
        return error
    return None


def test_few_hundred_states_and_some_try_every_value():
    assert len(STATES) < 400
    for control in CUTS.controls:
        assert {state[control.name] for state in SOME} == set(control.values)


@pytest.mark.parametrize("state", SOME, ids=str)
def test_the_sentence_the_table_and_the_figure_agree(state):
    view = CUTS.view(**state)
    rows = table(view)
    types = {name: parse(rows[name][0]) for name in ("x", "w", "y") if name in rows}
    error = refused([types["x"], types["w"]])
    assert ("Refused" in view.sentence) == ("y" not in types) == (error is not None)
    areas = {trace.name.partition(" ")[0]: trace for trace in view.figure.data if trace.fill}
    assert areas.keys() == types.keys()
    sizes = {"B": 8, "S": 4096, "h": 4096, "f": 14336}
    for name, sharding in types.items():
        held = 1
        for local, dim in zip(local_shape(sharding, sizes, explorers.MESH), sharding.names, strict=True):
            held *= local / sizes[dim]
        x, y = areas[name].x, areas[name].y
        shares = [(x[at + 1] - x[at]) * (y[at] - y[at + 2]) for at in range(0, len(x), 6)]
        assert shares == pytest.approx([held] * 8)
        assert (areas[name].fillpattern.shape == "/") == bool(sharding.partial)
    if error:
        assert error.reason.format(n=explorers.MESH[error.axis]) in view.sentence


@pytest.mark.parametrize("state", SOME, ids=str)
def test_every_repair_repairs_and_costs_what_is_said(state):
    view = CUTS.view(**state)
    rows = table(view)
    steps = [row for row in view.table if row[0].startswith("repair")]
    totals = {}
    for repair in {row[0].partition(":")[0] for row in steps}:
        factors = {name: parse(rows[name][0]) for name in "xw"}
        for label, change, *sent in steps:
            if label.startswith(repair):
                arrow, axis = change.split(" @")
                factors[label[-1]] = redistribute(factors[label[-1]], redistribution(axis, arrow))
                spoken = [each.partition("sends ")[2] for each in sent]
                totals[repair] = totals.get(repair, 0) + sum(number(each) for each in spoken if each != "nothing")
        assert refused(list(factors.values())) is None
    if steps:
        (said,) = re.findall(r"a rank sends (.+), backward included", view.sentence)
        cheapest = 0 if said == "nothing" else number(said)
        assert cheapest == pytest.approx(totals["repair 1"], rel=0.02)
        assert cheapest <= 1.02 * min(totals.values())
        count = sum(row[0].startswith("repair 1:") for row in steps)
        assert f"by {('one redistribution', 'two redistributions')[count - 1]}: " in view.sentence


def test_megatrons_two_matrices_and_what_is_refused():
    columns = CUTS.view(**CUTS.default())
    assert "y is <code>[B/dp, S, f/tp]</code>. Each rank computes 1/8 of the product." in columns.sentence
    rows = CUTS.view(x_dp="S(B)", x_tp="S(h)", w_dp="R", w_tp="S(h)")
    assert "Along tp each rank has one of 4 terms of y." in rows.sentence
    forgotten = CUTS.view(x_dp="S(B)", x_tp="I", w_dp="R", w_tp="S(f)")
    assert "each of 4 ranks gets one term of its gradient" in forgotten.sentence
    copies = CUTS.view(x_dp="S(B)", x_tp="R", w_dp="R", w_tp="R")
    assert "The ranks of tp compute the same." in copies.sentence


def test_an_all_reduce_of_terms_sends_what_a_ring_does():
    """3/4 of the tensor, twice: y has 8 / 2 x 4096 x 14336 numbers of 2 bytes."""
    view = CUTS.view(x_dp="S(B)", x_tp="S(h)", w_dp="R", w_tp="S(h)")
    (sent,) = [row[2] for row in view.table if row[:2] == ["y", "P -> I @tp"]]
    assert number(sent.removeprefix("forward sends ")) == pytest.approx(1.5 * 4 * 4096 * 14336 * 2, rel=0.006)


def test_every_control_changes_the_default():
    assert idle(CUTS) == []
