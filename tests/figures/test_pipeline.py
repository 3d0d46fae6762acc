"""The figure of pipelines draws every action where it happens, and what each stage holds."""

import pytest

from shardlab.costs.pipeline import timeline
from shardlab.figures import pipeline as figures
from shardlab.figures import style
from shardlab.schedules import make

EQUAL = {"F": 1, "I": 1, "W": 1}


def played(name="1F1B", p=3, m=4):
    return timeline.play(make(name, p, m), EQUAL)


def gantt(run):
    return figures.gantt_and_memory(run.events(), [run.held(stage) for stage in range(run.schedule.num_stages)])


def bars(figure):
    return {trace.name: trace for trace in figure.data if trace.type == "bar"}


def test_the_figure_says_what_its_axes_are_and_what_it_shows():
    layout = gantt(played()).layout
    assert layout.meta["alt"]
    assert layout.xaxis.title.text
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


def test_losses_stand_at_their_steps_each_in_a_look_of_its_own():
    one, other = figures.losses([1, 2], {"one": [3, 2], "other": [3, 1]}).data
    assert [list(one.x), list(one.y), list(other.y)] == [[1, 2], [3, 2], [3, 1]]
    assert one.line.color != other.line.color


def test_chunks_are_paler_and_numbered_by_microbatch():
    """On a dark page they are paler, too: a colour that fades would be lost there. A legend shows the first bar."""
    for bar in bars(gantt(played("interleaved", 2, 2))).values():
        looks = {(name.endswith(".1"), shade) for name, shade in zip(bar.customdata, bar.marker.color, strict=True)}
        color = bar.marker.color[0]
        assert looks == {(False, color), (True, style.tint(color, figures.PALER[1]))}
        assert style.luminance(style.tint(color, figures.PALER[1])) > style.luminance(color)
        assert bar.marker.opacity is None
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
