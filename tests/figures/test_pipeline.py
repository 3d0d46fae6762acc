"""The figures of pipelines draw every action where it happens, and what each stage holds."""

from dataclasses import replace

import pytest

from shardlab.costs.pipeline import timeline
from shardlab.figures import pipeline as figures
from shardlab.schedules import make

EQUAL = {"F": 1, "I": 1, "W": 1}
MEMORY = [{"parameters": 2e9, "gradients": 2e9, "optimizer": 12e9, "activations": 4e9}] * 2


def played(name="1F1B", p=3, m=4):
    return timeline.play(make(name, p, m), EQUAL)


def gantt(run):
    return figures.gantt_and_memory(run.events(), [run.held(stage) for stage in range(run.schedule.num_stages)])


def bars(figure):
    return {trace.name: trace for trace in figure.data if trace.type == "bar"}


def every_figure():
    run = played()
    return {
        "gantt_and_memory": gantt(run),
        "compared": figures.compared({"predicted": run.events(), "measured": run.events()}),
        "bubbles": figures.bubbles([2, 4], {"GPipe": [0.5, 0.4]}, {"GPipe": ([2], [0.5])}),
        "trade": figures.trade({"1F1B": (4, 0.27), "GPipe": (8, 0.27)}),
        "cut": figures.cut([0.3, 0.4], MEMORY, capacity=80e9),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    layout = every_figure()[name].layout
    assert layout.meta["alt"]
    assert layout.xaxis.title.text or name == "cut"
    assert not layout.title.text


def test_a_bar_for_every_action_where_it_happens():
    run = played("ZB-H1")
    found = bars(gantt(run))
    assert list(found) == ["forward", "input gradient", "weight gradients"]
    assert sum(len(bar.x) for bar in found.values()) == len(run.events())
    columns = (found["forward"][key] for key in ("y", "customdata", "base", "x"))
    drawn = {(row, text, base, base + length) for row, text, base, length in zip(*columns, strict=True)}
    assert drawn == {(e.rank, e.op, e.start, e.end) for e in run.events() if e.op.startswith("F")}
    assert list(found["forward"].text) == [e.op[1:] for e in run.events() if e.op.startswith("F")]
    assert len({(bar.marker.color, bar.marker.pattern.shape) for bar in found.values()}) == 3


def test_chunks_are_paler_and_numbered_by_microbatch():
    bar = bars(gantt(played("interleaved", 2, 2)))["forward"]
    looks = {(name.endswith(".1"), shade) for name, shade in zip(bar.customdata, bar.marker.opacity, strict=True)}
    assert looks == {(False, figures.FADED[0]), (True, figures.FADED[1])}
    assert set(bar.text) == {"0", "1"}


def test_a_pair_shares_its_row():
    run = played("DualPipe-V", 2, 5)
    found = bars(gantt(run))
    pairs = sum(event.op.startswith("&") for event in run.events())
    assert pairs > 0
    for name, under in (("forward", False), ("backward", True)):
        halves = [offset for width, offset in zip(found[name].width, found[name].offset, strict=True) if width < 0.5]
        assert len(halves) == pairs
        assert all((offset == 0) == under for offset in halves)
    assert "&" not in "".join(found["backward"].text)


def test_the_first_stage_is_on_top():
    axis = gantt(played()).layout.yaxis
    assert list(axis.ticktext) == ["stage 0", "stage 1", "stage 2"]
    assert axis.range[0] > axis.range[1]


def test_numbers_only_where_they_can_be_read():
    assert bars(gantt(played("1F1B", 2, 40)))["forward"].text is None


def test_the_strip_is_as_high_as_what_is_held():
    run = played("1F1B", 3, 4)
    figure = gantt(run)
    strip = next(trace for trace in figure.data if trace.name == "activations held")
    rows = [[]]
    for y in strip.y:
        rows[-1].append(y) if y is not None else rows.append([])
    heights = [max(row) - min(row) for row in rows if row]
    assert heights == pytest.approx([figures.THICK * peak / 3 for peak in run.peaks()])
    assert list(figure.layout.yaxis2.ticktext) == ["at most 3", "at most 2", "at most 1"]
    assert {trace.yaxis for trace in figure.data} == {None, "y2"}


def test_timelines_are_compared_from_their_first_action_to_their_last():
    run = played()
    late = [replace(event, start=7 + 2 * event.start, end=7 + 2 * event.end) for event in run.events()]
    figure = figures.compared({"predicted": run.events(), "measured": late})
    above, below = (next(bar for bar in figure.data if bar.yaxis == axis) for axis in ("y", "y2"))
    assert list(above.base) == pytest.approx(list(below.base))
    ends = [base + length for bar in figure.data for base, length in zip(bar.base, bar.x, strict=True)]
    assert max(ends) == pytest.approx(100)
    assert [bar.showlegend for bar in figure.data] == [True, True, False, False]


def test_shares_are_percent_and_counted_points_have_the_colour_of_their_line():
    found = {trace.name: trace for trace in every_figure()["bubbles"].data}
    assert list(found["GPipe"].y) == [50, 40]
    assert list(found["GPipe, counted"].y) == [50]
    assert found["GPipe, counted"].marker.color == found["GPipe"].line.color
    assert [trace.y[0] for trace in every_figure()["trade"].data] == [27, 27]


def test_the_slowest_stage_stands_out_and_memory_is_gigabytes():
    figure = every_figure()["cut"]
    found = bars(figure)
    assert list(found["forward and backward"].y) == [300, 400]
    assert found["forward and backward"].marker.opacity[1] > found["forward and backward"].marker.opacity[0]
    assert list(found["optimizer"].y) == [12, 12]
    assert found["optimizer"].yaxis == "y2"
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 80
    assert not figures.cut([0.3], MEMORY[:1]).layout.shapes
