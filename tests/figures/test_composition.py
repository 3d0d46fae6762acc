"""The figure of composition puts one rank's peers, messages and memory where its layout has them."""

import re
from importlib import resources

from shardlab.figures import composition as figures
from shardlab.figures import placement, style
from tests.figures.drawn import data

SENT = {"its group is in one node": {"tp": 4e9, "dp": 0.0, "pp": 0.0}, "in several": {"tp": 0.0, "dp": 2e9, "pp": 1e9}}
PEERS = {"itself": [(0, 0)], "tp": [(1, 0)], "dp": [(2, 0)], "pp": [(0, 1)], "none": [(1, 1), (2, 1)]}
HELD = {"parameters": 10e9, "optimizer": 20e9}


def test_one_rank_among_its_peers_what_it_sends_and_holds():
    figure = figures.one_rank(PEERS, SENT, HELD, 80e9)
    assert figure.layout.meta["alt"]
    found = data(figure)
    assert (list(found["its pp group"].x), list(found["its pp group"].y)) == ([0], [1])
    dots = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "markers"]
    assert len({trace.marker.color for trace in dots}) == len({trace.marker.symbol for trace in dots}) == 5
    assert list(found["in several"].x) == [0, 2, 1]
    assert "GB" in figure.layout.xaxis3.title.text
    assert found["capacity"].line.color == style.COLOR["limit"]
    domains = [figure.layout[axis].domain for axis in ("yaxis2", "yaxis3", "yaxis")]
    assert domains[0][1] < domains[1][0] < domains[1][1] < domains[2][0]


def test_an_axis_has_one_colour_in_every_figure_and_in_the_moving_picture():
    css = (resources.files("shardlab.explorers") / "wires.css").read_text(encoding="utf-8").upper()
    moving = {axis.lower(): color for axis, color in re.findall(r"\.WIRES-(\w\w), .*--AXIS: (#\w{6})", css)}
    peers = {axis: figures.PEERS[axis][0] for axis in moving}
    bars = {axis: look["color"] for axis, look in placement.AXES.items()}
    assert moving == peers == bars == {axis: style.COLOR[axis] for axis in ("tp", "dp", "pp")}
