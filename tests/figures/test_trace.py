"""A timeline draws every event as a bar in the row of its rank and kind."""

from itertools import pairwise

import pytest

from shardlab.figures import style, trace
from shardlab.trace import Event

EVENTS = [
    Event(1, "compute", "forward", (1,), 0, 10.0, 10.2),
    Event(0, "compute", "forward", (0,), 0, 10.1, 10.2),
    Event(0, "compute", "backward", (0,), 0, 10.2, 10.5),
    Event(0, "communicate", "all_reduce", (0, 1), 4_000_000, 10.3, 10.6),
    Event(1, "communicate", "all_reduce", (0, 1), 4_000_000, 10.3, 10.6),
    Event(0, "communicate", "broadcast", (0, 1), 8, 10.0, 10.05),
    Event(0, "compute", "augment", (0,), 0, 10.6, 10.7),
    Event(0, "compute", "load", (0,), 0, 10.7, 10.8),
]


def bars(figure):
    return {trace.name: trace for trace in figure.data}


def test_every_event_is_a_bar_from_the_first_start():
    found = bars(trace.timeline(EVENTS))
    assert [*found] == ["forward", "backward", "augment", "load", "broadcast", "all-reduce"]
    forward = found["forward"]
    assert list(forward.y) == ["rank 1 computes", "rank 0 computes"]
    assert list(forward.base) == pytest.approx([0, 100])
    assert list(forward.x) == pytest.approx([200, 100])
    assert list(found["all-reduce"].customdata) == [4, 4]
    assert sum(len(bar.x) for bar in found.values()) == len(EVENTS)


def test_ranks_stand_in_order_with_computing_above_communicating():
    axis = trace.timeline(EVENTS).layout.yaxis
    verbs = ("computes", "communicates")
    assert list(axis.categoryarray)[::-1] == [f"rank {rank} {verb}" for rank in (0, 1) for verb in verbs]


def test_kinds_differ_in_colour_and_operations_of_a_kind_in_tint_and_pattern():
    found = bars(trace.timeline(EVENTS))
    for names, kind in [
        (("forward", "backward", "augment", "load"), "compute"),
        (("all-reduce", "broadcast"), "communicate"),
    ]:
        tints = {found[name].marker.color for name in names}
        assert tints == {style.tint(style.COLOR[kind], place) for place in range(len(names))}
        assert len({found[name].marker.pattern.shape for name in names}) == len(names)
    assert found["forward"].marker.color == style.COLOR["compute"]


def test_tints_differ_in_lightness_alone():
    """Whoever sees no hue tells them apart."""
    for color in (style.BLUE, style.ORANGE, style.GREY):
        light = sorted(0.05 + style.luminance(style.tint(color, place)) for place in range(len(style.TINTS)))
        assert all(brighter / darker > 1.25 for darker, brighter in pairwise(light)), color
    assert style.tint(style.BLUE, 0) == style.tint(style.BLUE, len(style.TINTS)) == style.BLUE


def test_a_rank_that_waits_does_so_in_the_row_where_it_computes():
    waiting = Event(0, "idle", "waiting", (0,), 0, 10.5, 10.6)
    found = bars(trace.timeline([*EVENTS, waiting]))
    assert list(found["waiting"].y) == [trace.row(waiting)] == ["rank 0 computes"]
    assert found["waiting"].marker.color == style.COLOR["idle"]
    others = {bar.marker.pattern.shape for name, bar in found.items() if name != "waiting"}
    assert found["waiting"].marker.pattern.shape not in others
    axis = trace.timeline([waiting, *EVENTS]).layout.yaxis
    assert list(axis.categoryarray)[-2:] == ["rank 0 communicates", "rank 0 computes"]


def test_other_units_and_axis_titles():
    figure = trace.timeline(EVENTS, unit="s")
    assert figure.layout.xaxis.title.text == "time (s)"
    assert max(bars(figure)["augment"].base) == pytest.approx(0.6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="needs events"):
        trace.timeline([])
    with pytest.raises(ValueError, match="known: s, ms"):
        trace.timeline(EVENTS, unit="hours")
