"""The figures of tensor parallelism draw pieces to scale, and times in the units that axes state."""

import pytest

from shardlab.costs.facts.models import PUBLISHED
from shardlab.figures import tensor_parallel as figures
from shardlab.sharding import cuts
from tests.figures.drawn import data

PARTS = {"matrices": 2e-3, "attention": 1e-3, "norms and residuals": 1e-3, "waiting": 4e-3}
HELD = {"parameters": 2e9, "gradients": 2e9, "optimizer": 12e9, "activations": 4e9}
GPT2, LLAMA = PUBLISHED["GPT-2 small"].spec, PUBLISHED["Llama 3 8B"].spec


def every_figure():
    return {
        "pieces": figures.pieces(cuts.block(GPT2, 4)),
        "efficiency": figures.efficiency([1, 2], {"predicted": [1, 0.9]}),
        "shares_and_memory": figures.shares_and_memory([1, 2], [PARTS, PARTS], 2, HELD, 80e9, alt="A layer."),
    }


def boxes(trace):
    """(left, right, bottom, top) of each rectangle of a trace."""
    points = list(zip(trace.x, trace.y, strict=True))
    corners = [points[start : start + 4] for start in range(0, len(points), 6)]
    return [
        (min(x for x, _ in box), max(x for x, _ in box), min(y for _, y in box), max(y for _, y in box))
        for box in corners
    ]


def area(box):
    left, right, bottom, top = box
    return (right - left) * (top - bottom)


def overlap(a, b):
    return max(a[0], b[0]) + 1e-6 < min(a[1], b[1]) and max(a[2], b[2]) + 1e-6 < min(a[3], b[3])


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert not layout.title.text  # the caption says it
    if name != "pieces":
        assert layout.xaxis.title.text


@pytest.mark.parametrize(("spec", "tp"), [(GPT2, 1), (GPT2, 4), (LLAMA, 8), (LLAMA, 16), (LLAMA, 32)])
def test_pieces_are_to_scale_and_lie_side_by_side(spec, tp):
    """Together as large as the matrices; each rank's as large as what it holds; nowhere one above another."""
    layer = cuts.block(spec, tp)
    matrices = [cut for cut in layer.values() if len(cut.shape) > 1]
    figure = figures.pieces(layer)
    drawn = {name: boxes(trace) for name, trace in data(figure).items()}
    every = [box for each in drawn.values() for box in each]
    assert sum(map(area, every)) == pytest.approx(sum(cut.shape[0] * cut.shape[1] for cut in matrices))
    copied = [cut for cut in matrices if cut.holders > 1]
    own = [cut.local_shape[0] * cut.local_shape[1] for cut in matrices if cut.holders == 1]
    assert sum(map(area, drawn["rank 0"])) == pytest.approx(sum(own))
    assert ("copied" in drawn) == bool(copied)
    assert not any(overlap(a, b) for i, a in enumerate(every) for b in every[:i])
    assert figure.layout.yaxis.scaleanchor == "x"  # a number is as wide as it is high


def test_ranks_differ_in_colour_and_number():
    figure = figures.pieces(cuts.block(LLAMA, 8))
    assert len({trace.fillcolor for trace in figure.data if trace.name}) == 8
    texts = [text for trace in figure.data if trace.mode == "text" for text in trace.text]
    assert {"0", "7", "q", "k", "v", "out", "gate", "up", "down"} <= set(texts)
    assert list(data(figures.pieces(cuts.block(LLAMA, 16)))) == ["rank 0", "other ranks", "copied"]


def test_columns_stand_and_rows_lie():
    """As X @ A has them: what is cut by outputs is cut across, what is cut by inputs is cut down."""
    drawn = boxes(data(figures.pieces(cuts.block(GPT2, 4)))["rank 1"])
    sizes = [(right - left, top - bottom) for left, right, bottom, top in drawn]
    expected = [(192, 768)] * 3 + [(768, 192), (768, 768), (768, 768)]  # q, k, v; out, up, down
    for size, its in zip(sizes, expected, strict=True):
        assert size == pytest.approx(its)


def test_efficiency_is_percent():
    figure = figures.efficiency([1, 2], {"NVLink": [1, 0.9], "PCIe": [1, 0.5]})
    found = data(figure)
    assert list(found["PCIe"].y) == [100, 50]
    assert found["NVLink"].line.dash != found["PCIe"].line.dash


def test_the_explorers_figure_draws_shares_above_memory():
    figure = figures.shares_and_memory([1, 2], [PARTS, PARTS], 2, HELD, 80e9)
    found = data(figure)
    assert [found[part].y[1] for part in PARTS] == [25, 12.5, 12.5, 50]
    assert found["waiting"].marker.opacity == (figures.FADED, 1.0)
    assert found["optimizer"].yaxis == "y2"
    assert figure.layout.shapes[0].x0 == 80
