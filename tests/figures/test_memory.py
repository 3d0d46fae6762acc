"""The figures of memory stack bytes by part in a fitting unit, beside the capacity of the chip."""

import pytest

from shardlab.figures import memory as figures
from tests.figures.drawn import data

HELD = {"parameters": 2e9, "gradients": 2e9, "optimizer": 12e9, "activations": 4e9, "logits": 1e9, "buffers": 2e9}
HELD["overhead"] = 1e9
LESS = {"parameters": 1e9, "activations": 3e9}


def every_figure():
    return {
        "by_part": figures.by_part({"dp = 1": HELD}, capacity=80e9),
        "stages": figures.stages([HELD, LESS], capacity=80e9),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert not layout.title.text  # the caption says it
    titles = [layout.xaxis.title.text, layout.yaxis.title.text]
    assert any(title and title.endswith(("(GB)", "(MB)", "(B)")) for title in titles)


def test_bars_are_gigabytes_beside_the_capacity():
    figure = figures.by_part({"dp = 1": HELD, "dp = 2": LESS}, capacity=80e9)
    found = data(figure)
    assert list(found["optimizer"].x) == [12, 0]
    assert list(found["parameters"].y) == ["dp = 1", "dp = 2"]
    assert figure.layout.shapes[0].x0 == 80
    assert figure.layout.xaxis.range[1] > 80
    assert not figures.by_part({"dp = 1": HELD}).layout.shapes


def test_small_amounts_have_smaller_units():
    for nbytes, unit, shown in [(5e8, "GB", 0.5), (4e8, "MB", 400), (2e3, "kB", 2), (3, "B", 3)]:
        figure = figures.by_part({"rank": {"parameters": nbytes}})
        assert figure.layout.xaxis.title.text == f"memory per rank ({unit})"
        assert list(figure.data[0].x) == [shown]
        assert f" {unit}<" in figure.data[0].hovertemplate


def test_stages_stand_side_by_side():
    figure = figures.stages([HELD, LESS], capacity=10e9)
    found = data(figure)
    assert list(found["optimizer"].x) == ["0", "1"]
    assert list(found["optimizer"].y) == [12, 0]
    assert found["optimizer"].orientation == "v"
    assert (figure.layout.shapes[0].y0, figure.layout.shapes[0].y1) == (10, 10)
    assert figure.layout.yaxis.range[1] > 23


def test_every_part_differs_by_more_than_colour():
    looks = {(marker["color"], marker["pattern"]["shape"]) for marker in figures.PARTS.values()}
    assert len(looks) == len({color for color, _ in looks}) == len({shape for _, shape in looks}) == len(figures.PARTS)
