"""The figures of the planner name every plan and draw all parts of its step, and errors in percent."""

import pytest

from shardlab.costs import step
from shardlab.figures import planner as figures
from shardlab.figures import predictions
from tests.figures.drawn import data

PARTS = {part: float(index) for index, part in enumerate(figures.PARTS)}
LONG = "tp 8, pp 16, dp 128, ZeRO-1, sequence parallel, microbatch 1, interleaved in 8 chunks, full recomputation"


def every_figure():
    return {
        "breakdown": figures.breakdown({"short": PARTS, LONG: PARTS}),
        "reasons": figures.reasons({"fits": 0, "too little memory": 1200}),
        "shares": figures.shares({"a machine": {"without overlap": 0.3, "with overlap": 0.1}}),
        "residuals": predictions.residuals({"a": [0.1, -0.1], "b": [0.02]}, {"a": 0.05, "b": 0.01}),
        "products": predictions.products([128, 256], {"square": [0.1, 0.2]}, title="size"),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert layout.xaxis.title.text
    assert not layout.title.text


def test_parts_are_those_of_a_step_and_look_different():
    assert list(figures.PARTS) == list(step.SUMMARY)
    looks = {(mark["color"], mark["pattern"]["shape"]) for mark in figures.PARTS.values()}
    assert len(looks) == len(figures.PARTS)


def test_every_part_of_a_step_is_drawn_once():
    parts = [part for parts in step.SUMMARY.values() for part in parts]
    assert len(parts) == len(set(parts))
    assert set(step.COMMUNICATION) < set(parts)


def test_bars_add_up_and_leave_out_what_takes_no_time():
    found = data(every_figure()["breakdown"])
    assert "matrices" not in found  # zero seconds
    assert sum(trace.x[1] for trace in found.values()) == sum(PARTS.values())


def test_long_names_break():
    labels = [label.text for label in every_figure()["breakdown"].layout.annotations]
    assert labels[0] == "short"
    assert "<br>" in labels[1]
    assert max(map(len, labels[1].split("<br>"))) <= figures.NARROW


def test_shares_are_percent_side_by_side():
    found = data(every_figure()["shares"])
    assert (list(found["without overlap"].x), list(found["with overlap"].x)) == ([30], [10])
    assert found["without overlap"].y[0] < found["with overlap"].y[0]


def test_none_that_fit_is_written_as_none():
    (bar,) = every_figure()["reasons"].data
    assert list(bar.text) == ["0", "1,200"]
    assert 0 < bar.x[0] < 1


def test_errors_are_percent_and_their_mean_has_no_sign():
    found = data(every_figure()["residuals"])
    assert list(found["one row"].x) == [10, -10, 2]
    assert list(found["mean, without signs"].x) == [10, 2]
    assert list(found["a constant in hindsight"].x) == [5, 1]
