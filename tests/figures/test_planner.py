"""The figures of the planner name every case and draw its waiting, and errors in percent."""

import pytest

from shardlab.costs import step
from shardlab.figures import planner as figures
from shardlab.figures import predictions
from tests.figures.drawn import data

LONG = "tp 8, pp 16, dp 128, ZeRO-1, sequence parallel, microbatch 1, interleaved in 8 chunks, full recomputation"


def every_figure():
    return {
        "shares": figures.shares({name: {"without overlap": 0.3, "with overlap": 0.1} for name in ("short", LONG)}),
        "residuals": predictions.residuals({"a": [0.1, -0.1], "b": [0.02]}, {"a": 0.05, "b": 0.01}),
        "products": predictions.products([128, 256], {"square": [0.1, 0.2]}, title="size"),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert layout.xaxis.title.text
    assert not layout.title.text


def test_every_part_of_a_step_is_drawn_once():
    parts = [part for parts in step.SUMMARY.values() for part in parts]
    assert len(parts) == len(set(parts))
    assert set(step.COMMUNICATION) < set(parts)


def test_long_names_break():
    labels = [label.text for label in every_figure()["shares"].layout.annotations]
    assert labels[0] == "short"
    assert "<br>" in labels[1]
    assert max(map(len, labels[1].split("<br>"))) <= figures.NARROW


def test_shares_are_percent_side_by_side():
    found = data(every_figure()["shares"])
    assert (list(found["without overlap"].x), list(found["with overlap"].x)) == ([30, 30], [10, 10])
    assert found["without overlap"].y[0] < found["with overlap"].y[0]


def test_errors_are_percent_and_their_mean_has_no_sign():
    found = data(every_figure()["residuals"])
    assert list(found["one row"].x) == [10, -10, 2]
    assert list(found["mean, without signs"].x) == [10, 2]
    assert list(found["a constant in hindsight"].x) == [5, 1]
