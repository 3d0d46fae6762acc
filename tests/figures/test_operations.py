"""The figures of operations draw the shares and the stretches that they are given."""

import pytest

from shardlab.costs.operations import Reliability, play
from shardlab.figures import operations as figures


def test_losses_are_drawn_in_percent_with_the_chosen_point():
    figure = figures.losses([1, 10], {"saving": [0.2, 0.02], "together": [0.3, 0.1]}, (10, 0.1))
    assert [trace.name for trace in figure.data] == ["saving", "together", "chosen"]
    assert [list(trace.y) for trace in figure.data] == [pytest.approx(each) for each in ([20, 2], [30, 10], [10])]


def test_the_goodput_of_each_way_is_a_line_and_points_in_percent_of_one_colour():
    curves = {"waits": [(0.1, 0.2), (1, 0.4)], "behind": [(1, 0.5), (2, 0.4)]}
    figure = figures.goodput(curves, {"behind": [(1, 0.45)], "waits": [(1, 0.35)]})
    assert [trace.mode for trace in figure.data] == ["lines", "markers"] * 2
    assert [trace.name.split(",")[0] for trace in figure.data] == ["waits", "waits", "behind", "behind"]
    shares = [20, 40], [35], [50, 40], [45]
    assert [list(trace.y) for trace in figure.data] == [pytest.approx(each) for each in shares]
    waits, found, behind, _ = (trace.line.color or trace.marker.color for trace in figure.data)
    assert waits == found != behind


def test_hours_are_drawn_up_to_the_end_of_the_window_and_add_up_to_it():
    stretches = play(Reliability(between=3600.0, save=60.0, restart=300.0), 600.0, 80_000.0, 3)
    rows = [(each.kind, each.start, each.end) for each in stretches]
    figure = figures.hours({"10 min": rows}, 10)
    assert {trace.name for trace in figure.data} == {kind for kind, _, _ in rows}
    assert sum(sum(trace.x) for trace in figure.data) == pytest.approx(10)
    assert max(base + x for trace in figure.data for base, x in zip(trace.base, trace.x, strict=True)) == 10
