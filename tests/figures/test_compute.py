"""The figures of compute draw what they are given, in the units that their axes state."""

import pytest

from shardlab.figures import compute as figures
from shardlab.figures import history, style
from tests.figures.drawn import data, lacks

CHIPS = [1, 10, 100]


def every_figure():
    return {
        "rooflines": figures.rooflines([1, 100], {"chip": [1e12, 1e14]}, {"product": (10, 1e13)}),
        "layer": figures.layer({"norm": (1e-6, "memory"), "product": (2e-6, "arithmetic")}),
        "utilisations": figures.utilisations({"a": (0.3, 0.4, 0.41), "b": (0.5, None, None)}),
        "days": figures.days(CHIPS, {"model": [100, 10, 1]}),
        "splits": figures.splits([1e20, 1e22], {"law": [1e9, 1e10]}),
        "sizes": history.sizes({"dense": [("GPT-1", "2018-06", 117e6)]}, ["GPT-1"]),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    figure = every_figure()[name]
    layout = figure.layout
    assert lacks(figure) == []
    if name not in {"days", "sizes"}:  # numbers of chips, dates
        assert layout.xaxis.title.text.endswith(")")  # a unit in brackets


def test_a_roofline_is_drawn_as_given_and_work_carries_its_name():
    figure = figures.rooflines(
        [1, 100],
        {"this CPU": [1e10, 1e11], "GPU": [1e12, 1e14]},
        {"product": (10, 1e13)},
        {"this CPU": ([1, 2], [1e10, 2e10])},
    )
    found = data(figure)
    assert list(found["GPU"].y) == [1e12, 1e14]
    assert found["GPU"].line.dash != found["this CPU"].line.dash
    assert found["this CPU, measured"].marker.color == found["this CPU"].line.color
    assert found["this CPU, measured"].marker.symbol == style.SYMBOL["measured"]
    assert list(found["operation"].text) == ["product"]
    assert {figure.layout.xaxis.type, figure.layout.yaxis.type} == {"log"}


def test_a_layer_is_microseconds_by_what_it_waits_for():
    found = data(figures.layer({"norm": (1e-6, "memory"), "product": (2e-6, "arithmetic")}))
    assert list(found["waits for memory"].x) == [1]
    assert list(found["waits for arithmetic"].y) == ["product"]
    looks = {bar.marker.pattern.shape for bar in found.values()}
    assert len(looks) == 2


def test_utilisations_stack_to_hfu_beside_what_is_printed():
    found = data(figures.utilisations({"a": (0.3, 0.4, 0.41), "b": (0.5, None, None)}))
    assert list(found["model FLOPs"].x) == [30, 50]
    assert list(found["recomputed"].x) == pytest.approx([10, 0])
    assert (list(found["printed"].x), list(found["printed"].y)) == ([41], ["a"])


def test_names_of_points_stand_off_lines_that_rise():
    places = {"low": (1, 1.0), "high": (1, 3.0), "middle": (1, 2.0)}
    (named,) = (trace for trace in figures.splits(CHIPS, {}, places).data if trace.mode == "markers+text")
    assert dict(zip(named.text, named.textposition, strict=True)) == {
        "high": "top left", "middle": "top left", "low": "bottom right",
    }  # fmt: skip


def test_only_the_named_models_carry_their_name():
    models = [("GPT-1", "2018-06", 117e6), ("GPT-3", "2020-05", 175e9)]
    found = data(history.sizes({"dense": models, "mixture of experts": [("Switch-C", "2021-01", 1.6e12)]}, ["GPT-3"]))
    assert list(found["dense"].text) == ["", "GPT-3"]
    assert list(found["dense"].x) == ["2018-06", "2020-05"]
    assert found["dense"].marker.symbol != found["mixture of experts"].marker.symbol


def test_a_logarithmic_axis_names_its_ticks():
    assert style.axis("size", type="log", dtick=1)["dtick"] == 1
    with pytest.raises(ValueError, match="'size' has no ticks"):
        style.axis("size", type="log")
