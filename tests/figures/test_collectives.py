"""The figures of collectives draw each algorithm as given, and mark the fastest and the bounds."""

import pytest

from shardlab.figures import collectives as figures
from shardlab.figures import style
from tests.figures.drawn import data, lacks

FOUND = {"median": 2e-3, "quartile 1": 1e-3, "quartile 3": 4e-3}
FUSED = [{"ranks": 2, "times as fast": {"one by one": FOUND, "all in one": {**FOUND, "median": 3.0}}}]


def every_figure():
    return {
        "crossover": figures.crossover([1e3, 1e6], {"ring": [3e-6, 1e-3], "naive": [1e-6, 2e-3]}, [1e-6, 1e-3]),
        "fused": figures.fused(FUSED),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    figure = every_figure()[name]
    layout = figure.layout
    assert lacks(figure) == []
    assert layout.yaxis.title.text
    assert not layout.title.text  # the caption says it


def test_the_fastest_is_marked_at_every_size():
    found = data(every_figure()["crossover"])
    assert list(found["fastest"].y) == [1e-6, 1e-3]
    assert list(found["ring"].y) == [3e-6, 1e-3]
    assert found["lower bound"].line.color == style.COLOR["limit"]
    assert len({(found[name].line.color, found[name].line.dash) for name in ("ring", "naive", "lower bound")}) == 3


def test_fused_dots_have_a_symbol_for_each_number_of_ranks():
    dots = figures.fused([{**FUSED[0], "ranks": ranks} for ranks in (2, 4, 8)]).data
    assert [list(each.y) for each in dots] == [[2e-3, 3.0]] * 3
    assert len({each.marker.symbol for each in dots}) == 3
