"""The figures of data parallelism draw shares and speed-ups in the units that their axes state."""

import pytest

from shardlab.figures import data_parallel as figures
from shardlab.figures import style
from shardlab.trace import Event
from tests.figures.drawn import data

MEMORY = {"parameters": 2e9, "gradients": 2e9, "optimizer": 12e9, "activations": 4e9}
EVENTS = [
    Event(0, "compute", "forward", (0,), 0, 0.0, 0.1),
    Event(0, "communicate", "all_reduce", (0, 1), 8, 0.1, 0.2),
]


def every_figure():
    steps = [1, 2, 3]
    return {
        "shares": figures.shares({"box": {"without overlap": 0.3, "with overlap": 0.1}}),
        "speedup": figures.speedup([1, 2], {"predicted": [1, 1.9]}),
        "drift": figures.drift(steps, {"weights": [1e-3, 2e-3, 3e-3]}),
        "timeline_and_memory": figures.timeline_and_memory(EVENTS, MEMORY, 80e9, step="200 ms", alt="A step."),
    }


AXES = {  # the words along x and y; a quantity that has a unit says it
    "shares": ("share of the step spent waiting (%)", ""),  # the bars' names stand along y
    "speedup": ("ranks", "speed-up"),
    "drift": ("training step", "distance between the parameters"),
    "timeline_and_memory": ("share of a step of 200 ms (%)", ""),
}


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == AXES[name]
    assert not layout.title.text  # the caption says it


def test_shares_are_percent():
    found = data(figures.shares({"box": {"without overlap": 0.3, "with overlap": 0.1, "busy": 0.5}}))
    assert {name: list(bar.x) for name, bar in found.items()} == {"without overlap": [30], "with overlap": [10]}


def test_speed_up_stands_beside_the_ideal():
    found = data(figures.speedup([1, 2, 4], {"predicted": [1, 1.9, 3]}, {"measured": ([1, 2], [1, 1.5])}))
    assert list(found["ideal"].y) == [1, 2, 4]
    assert list(found["measured"].y) == [1, 1.5]
    assert found["measured"].marker.symbol == style.SYMBOL["measured"]
    assert len({found[name].line.dash for name in ("ideal", "predicted")}) == 2


def test_the_explorers_figure_draws_time_above_memory():
    figure = figures.timeline_and_memory(EVENTS, MEMORY, 80e9, step="200 ms")
    found = data(figure)
    assert found["forward"].yaxis is None
    assert list(found["all-reduce"].x) == pytest.approx([50])
    assert found["optimizer"].yaxis == "y2"
    assert figure.layout.shapes[0].xref == "x2"
    assert figure.layout.xaxis2.range[1] > 80
