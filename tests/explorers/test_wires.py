"""Picture and table of the wires say what meshes and costs say, for every rank and order."""

import html
import json
import re

import pytest

from shardlab.costs import composition, units
from shardlab.explorers import wires
from shardlab.ranks.mesh import Mesh
from shardlab.sharding.layout import AXES_3D

PICTURE = wires.Neighbours()
DRAWN = json.loads(html.unescape(re.search(r'data-wires="([^"]*)"', PICTURE.html())[1]))
BOTH = list(zip(PICTURE.orders, DRAWN["orders"], strict=True))
EVERY_ORDER = pytest.mark.parametrize(("order", "drawn"), BOTH, ids=[order.name for order in PICTURE.orders])
RANKS = range(wires.LAYOUT.ranks)


class FakeGroup:
    """One rank of a world that is not running."""

    def __init__(self, rank):
        self.own = rank

    def rank(self):
        return self.own

    def size(self):
        return len(RANKS)


def near(source, to):
    return source // wires.CLUSTER.node.gpus == to // wires.CLUSTER.node.gpus


@EVERY_ORDER
def test_places_and_groups_are_those_of_each_ranks_mesh(order, drawn, monkeypatch):
    monkeypatch.setattr("shardlab.comm.subgroup", lambda _, ranks: ranks)
    for rank in RANKS:
        mesh = Mesh(wires.LAYOUT, FakeGroup(rank), order=order.axes)
        assert drawn["places"][rank] == [mesh.place[axis] for axis in AXES_3D]
        for axis in AXES_3D:
            (mine,) = (group["ranks"] for group in drawn["axes"][axis] if rank in group["ranks"])
            assert tuple(mine) == getattr(mesh, axis)


@EVERY_ORDER
def test_ranks_that_an_axis_joins_differ_in_its_share_only(order, drawn):
    for n, axis in enumerate(AXES_3D):
        for group in drawn["axes"][axis]:
            places = [drawn["places"][rank] for rank in group["ranks"]]
            assert [place[n] for place in places] == list(range(len(DRAWN["shares"][axis])))
            assert len({tuple(place[:n] + place[n + 1 :]) for place in places}) == 1


@EVERY_ORDER
def test_the_last_axis_alone_crosses_the_network(order, drawn):
    crossing = {
        axis for axis in AXES_3D for group in drawn["axes"][axis] for wire in group["wires"] if not near(*wire)
    }
    assert crossing == {order.axes[-1]}
    left = composition.leaving(wires.TRAINING, wires.CLUSTER.node.gpus, order.axes)
    assert {axis for axis, nbytes in left.items() if nbytes} == crossing
    sent = units.text(left[order.axes[-1]], "B")
    assert drawn["state"].startswith(f"{order.axes[-1]} crosses the network: each node sends {sent}.")


@EVERY_ORDER
def test_a_group_sends_what_its_ranks_send(order, drawn):
    for axis in AXES_3D:
        for group in drawn["axes"][axis]:
            stages = [drawn["places"][rank][2] for rank in group["ranks"]]
            total = sum(sum(composition.sent(wires.TRAINING, stage)[axis].values()) for stage in stages)
            shares = total / wires.MOST
            assert sum(group["share"]) == pytest.approx(shares, abs=1e-4)
            inside = sum(near(*wire) for wire in group["wires"]) / len(group["wires"])
            assert group["share"] == pytest.approx([inside * shares, (1 - inside) * shares], abs=1e-4)
            parts = [("NVLink", inside), ("network", 1 - inside)]
            told = ", ".join(f"{link} {units.text(part * total, 'B')}" for link, part in parts if part)
            assert group["sent"].endswith(f": {told}")


def test_the_pieces_of_all_places_are_the_model_and_the_batch():
    shares = DRAWN["shares"]
    layers = [range(int(a), int(b) + 1) for a, b in (re.findall(r"\d+", each) for each in shares["pp"])]
    assert [len(each) for each in layers] == [wires.TRAINING.layers_of(stage) for stage in range(2)]
    assert [*layers[0], *layers[1]] == list(range(wires.TRAINING.spec.num_layers))
    assert shares["dp"] == [
        "sequences 1 to 8; its optimizer steps the first half",
        "sequences 9 to 16; its optimizer steps the second half",
    ]
    assert shares["tp"] == [f"{nth} quarter of each matrix" for nth in ("first", "second", "third", "fourth")]


def test_a_step_is_slow_where_tp_crosses():
    last = {order.axes[-1]: order.seconds for order in PICTURE.orders}
    assert last["pp"] < last["dp"] < 1.1 * last["pp"]
    assert last["tp"] > 1.5 * last["pp"]


@EVERY_ORDER
def test_the_table_has_what_the_picture_says(order, drawn):
    *axes, everything = order.rows()
    assert everything[2] == drawn["state"]
    assert [row[1] for row in axes] == list(order.axes)
    for row in axes:
        groups = drawn["axes"][row[1]]
        assert row[2] == " / ".join(DRAWN["shares"][row[1]])
        assert row[3] == "; ".join(" ".join(map(str, group["ranks"])) for group in groups)
        for nbytes, link in zip(row[4:], ("NVLink", "network"), strict=True):
            assert any(f"{link} {nbytes}" in group["sent"] for group in groups) or nbytes == "0 B"


def test_without_javascript_all_numbers_stand_in_the_page():
    page = PICTURE.html()
    assert PICTURE.table() in page
    assert "<details" in page
    assert page.count('type="radio"') == len(wires.ORDERS)


@EVERY_ORDER
def test_what_a_group_sends_fits_a_line_on_a_phone(order, drawn):
    said = [group["sent"] for axis in AXES_3D for group in drawn["axes"][axis]]
    assert max(map(len, said)) <= 53  # letters of the text face in 339 of 390 pixels
