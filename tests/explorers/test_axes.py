"""Axes have one range in all states of an explorer."""

import plotly.graph_objects as go
import pytest

from shardlab.explorers import axes
from shardlab.explorers.explorer import Explorer
from shardlab.explorers.view import View

LENGTHS = [1, 2, 30, 400]


def stack(length):
    bars = [go.Bar(y=["rank"], x=[part], orientation="h") for part in (length, 2 * length)]
    return View(go.Figure(bars, {"barmode": "stack", "xaxis": {"rangemode": "tozero"}}))


def line(length):
    figure = go.Figure(go.Scatter(x=[0, 1], y=[length, 10 * length]), {"yaxis_type": "log"})
    return View(figure.add_hline(10_000))


@pytest.mark.parametrize(
    ("fn", "axis", "expected"),
    [(stack, "xaxis", [0, 1.05 * 1200]), (line, "yaxis", [-0.2, 4.2])],
)
def test_a_range_holds_all_states(fn, axis, expected):
    views = Explorer(fn, {"length": LENGTHS}, title="lengths").views()
    for view in views:
        layout = view["figure"]["layout"]
        assert layout[axis]["range"] == pytest.approx(expected)
        assert "rangemode" not in layout[axis]
    assert "range" not in views[0]["figure"]["layout"].get("yaxis" if axis == "xaxis" else "", {}), "of names"


def test_each_value_of_some_controls_has_a_range_of_its_own():
    controls = {"length": LENGTHS, "far": [False, True]}
    made = Explorer(lambda length, far: stack(length + 1000 * far), controls, title="far", per=["far"])
    ends = [view["figure"]["layout"]["xaxis"]["range"][1] for view in made.views()]
    assert ends == pytest.approx([1.05 * 1200, 1.05 * 4200] * len(LENGTHS))


def test_a_longer_bar_is_cut_and_says_its_length():
    views = Explorer(stack, {"length": LENGTHS}, title="cut", most={"xaxis": 90}).views()
    said = [[each["text"] for each in view["figure"]["layout"].get("annotations", ())] for view in views]
    assert said == [[], [], [], ["to 1,200"]]
    assert {tuple(view["figure"]["layout"]["xaxis"]["range"]) for view in views} == {(0, 90)}


def test_a_turned_axis_stays_turned_and_an_invisible_one_moves():
    def shown(n):
        return View(go.Figure(go.Scatter(x=[0, n], y=[0, n]), {"yaxis_range": [n, 0], "xaxis_visible": False}))

    for view in Explorer(shown, {"n": [1, 2, 3, 4]}, title="turned").views():
        assert view["figure"]["layout"]["yaxis"]["range"] == [4, 0]
        assert "range" not in view["figure"]["layout"]["xaxis"]


def test_a_range_that_grows_never_shrinks():
    held = axes.Axes({})
    for length, end in ((4, 12.6), (1, 12.6), (10, 31.5)):
        figure = stack(length).plain()["figure"]
        held.see(figure)
        held.hold(figure)
        assert figure["layout"]["xaxis"]["range"] == pytest.approx([0, end])
