"""The figures of composition put every rank, piece and message where the layout has it."""

import re
from itertools import pairwise

import pytest

from shardlab.figures import composition as figures
from shardlab.figures import style
from shardlab.sharding.layout import AXES_3D, Layout, groups, holdings
from tests.figures.drawn import data

LAYOUT = Layout(dp=2, tp=2, pp=2, zero=1)
SENT = {"its group is in one node": {"tp": 4e9, "dp": 0.0, "pp": 0.0}, "in several": {"tp": 0.0, "dp": 2e9, "pp": 1e9}}
PEERS = {"itself": [(0, 0)], "tp": [(1, 0)], "dp": [(2, 0)], "pp": [(0, 1)], "none": [(1, 1), (2, 1)]}
HELD = {"parameters": 10e9, "optimizer": 20e9}


def every_figure():
    return {
        "mesh": figures.mesh(groups(LAYOUT), per_node=4),
        "pieces": figures.pieces(holdings(LAYOUT, 4), per_node=4),
        "one_rank": figures.one_rank(PEERS, SENT, HELD, 80e9),
    }


def boxes(trace):
    """(left, right, top, bottom) of the rectangles of an area."""
    found = []
    for first in range(0, len(trace.x), 6):
        x, y = trace.x[first : first + 5], trace.y[first : first + 5]
        found.append((min(x), max(x), max(y), min(y)))
    return found


def texts(figure):
    (trace,) = [trace for trace in figure.data if trace.mode == "text"]
    return list(zip(trace.x, trace.y, [int(re.match(r"<b>(\d+)", text)[1]) for text in trace.text], strict=True))


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert not layout.title.text
    assert layout.legend.orientation == "h"


@pytest.mark.parametrize("order", [AXES_3D, ("pp", "dp", "tp")])
def test_ranks_of_a_group_have_its_look_in_the_row_of_their_axis(order):
    every = groups(LAYOUT, order)
    figure = figures.mesh(every, per_node=4)
    assert list(figure.layout.yaxis.ticktext) == list(every)
    for number, letter in enumerate("abcd"):
        marked = []
        for left, right, top, bottom in boxes(data(figure)[f"group {letter}"]):
            inside = [rank for x, y, rank in texts(figure) if left < x < right and bottom < y < top]
            row = min(range(3), key=lambda i: abs(figure.layout.yaxis.tickvals[i] - (top + bottom) / 2))
            marked += [(list(every)[row], *inside)]
        assert sorted(marked) == sorted((axis, rank) for axis in every for rank in every[axis][number])
    fills = {trace.fillcolor for trace in data(figure).values()}
    assert len(fills) == 4


def test_nodes_stand_apart():
    figure = figures.mesh(groups(LAYOUT), per_node=4)
    lefts = sorted({x for x, _, _ in texts(figure)})
    gaps = [b - a for a, b in pairwise(lefts)]
    assert gaps.index(max(gaps)) == 3


def test_pieces_are_where_the_ranks_are_and_together_the_model():
    figure = figures.pieces(holdings(LAYOUT, 4), per_node=4)
    areas = [box for name in ("node 0", "node 1") for box in boxes(data(figure)[name])]
    assert sum((right - left) * (top - bottom) for left, right, top, bottom in areas) == pytest.approx(2)
    for name, ranks in (("node 0", range(4)), ("node 1", range(4, 8))):
        inside = [r for x, y, r in texts(figure) for a, b, c, d in boxes(data(figure)[name]) if a < x < b and d < y < c]
        assert sorted(inside) == list(ranks)
    shares = boxes(data(figure)["its share of the optimizer"])
    assert sum((right - left) * (top - bottom) for left, right, top, bottom in shares) == pytest.approx(1)
    assert "its share of the optimizer" not in data(figures.pieces(holdings(Layout(dp=2, tp=2), 4), per_node=4))


def test_one_rank_among_its_peers_what_it_sends_and_holds():
    figure = figures.one_rank(PEERS, SENT, HELD, 80e9)
    found = data(figure)
    assert (list(found["its pp group"].x), list(found["its pp group"].y)) == ([0], [1])
    dots = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "markers"]
    assert len({trace.marker.color for trace in dots}) == len({trace.marker.symbol for trace in dots}) == 5
    assert list(found["in several"].x) == [0, 2, 1]
    assert "GB" in figure.layout.xaxis3.title.text
    assert found["capacity"].line.color == style.COLOR["limit"]
    domains = [figure.layout[axis].domain for axis in ("yaxis2", "yaxis3", "yaxis")]
    assert domains[0][1] < domains[1][0] < domains[1][1] < domains[2][0]
