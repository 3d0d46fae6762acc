"""The figures of placement draw every axis, machine and rate once."""

import pytest

from shardlab.figures import placement as figures


def by_name(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


def test_crossings_are_stacked_by_axis():
    carried = {"network": {"tp": 0, "dp": 3e9, "pp": 1e9}, "NVLink": {"tp": 7e9, "dp": 0, "pp": 0}}
    figure = figures.crossings(carried)
    bars = by_name(figure)
    assert {name: list(bar.x) for name, bar in bars.items()} == {
        "tensor parallel": [0, 7], "data parallel": [3, 0], "pipeline": [1, 0],
    }  # fmt: skip
    assert list(bars["pipeline"].y) == ["busiest network card", "busiest NVLink"]


def test_the_same_step_on_several_machines():
    figure = figures.steps({"a": {"computing": 1.0, "waiting": 0.5}, "b": {"computing": 1.0, "waiting": 4.0}})
    assert {name: list(bar.x) for name, bar in by_name(figure).items()} == {"computing": [1, 1], "waiting": [0.5, 4]}
    assert figure.layout.barmode == "stack"


def test_the_knee_is_drawn_in_terabits_a_second():
    figure = figures.knee([50e9, 400e9], {"dp=8": [2.0, 1.1]}, have=400e9)
    assert list(figure.data[0].x) == pytest.approx([0.4, 3.2])
    assert figure.layout.shapes[0].x0 == pytest.approx(3.2)
    assert "what the node has" in by_name(figure)
    assert figures.knee([50e9, 400e9], {"dp=8": [2.0, 1.1]}).layout.shapes == ()
