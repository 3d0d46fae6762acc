"""The figure of several replays puts their links below one another, on one clock."""

import pytest

from shardlab import exchanges
from shardlab.costs.facts import hardware, network
from shardlab.costs.traces import writing
from shardlab.costs.traces.replay import replay
from shardlab.figures import replay as figures

WHERE = network.uniform(4, hardware.link("InfiniBand NDR"), hardware.chip("H100 SXM 80 GB"))


def test_links_of_several_replays_stand_below_one_another_on_one_clock_and_equal_ones_are_one_row():
    played = {
        name: replay(writing.of_plan(exchanges.ALL_REDUCES[name](4), 10**6), WHERE, link_utilisation=1.0)
        for name in ("recursive doubling", "ring")
    }
    figure = figures.busy({name: each.curves(8) for name, each in played.items()}, played["ring"].where)
    layout, bars = figure.layout, {bar.yaxis: bar for bar in figure.data}
    assert (layout.yaxis.title.text, layout.yaxis2.title.text) == ("recursive doubling", "ring")
    assert layout.yaxis2.domain[1] < layout.yaxis.domain[0]
    assert layout.xaxis.title.text == "time (ms)<br>replayed on 4 × InfiniBand NDR"
    assert layout.xaxis.range[1] == pytest.approx(1.01e3 * played["ring"].seconds)
    assert sorted(layout.yaxis.categoryarray) == ["4 × GPU → switch", "4 × switch → GPU"]
    megabyte = 1e3 * 1e6 / 50e9  # ms: the ring sends 6 quarters on each link, the other one 2 buffers
    busy = {axis: sum(bar.x) for axis, bar in bars.items()}
    assert busy == {"y": pytest.approx(2 * 2 * megabyte), "y2": pytest.approx(2 * 6 / 4 * megabyte)}
    assert not any(bar.showlegend for bar in figure.data), "all links are full: nothing to tell apart"


def test_levels_stand_in_the_legend_once_where_there_are_several():
    links = {"a": [(0.0, 0.2), (1.0, 1.0), (2.0, 0.0)]}
    bars = figures.busy({"one": links, "two": links}, "replayed on nothing", unit="s").data
    assert [(bar.name, bar.showlegend) for bar in bars] == [
        ("link ≤ 33 %", True), ("link ≤ 100 %", True), ("link ≤ 33 %", False), ("link ≤ 100 %", False),
    ]  # fmt: skip


def test_unequal_links_keep_their_rows_and_a_single_row_has_the_name_of_its_replay():
    full, late = [(0.0, 1.0), (1.0, 0.0)], [(1.0, 1.0), (2.0, 0.0)]
    links = {"node 0: NIC 0 → network": full, "node 1: NIC 0 → network": late}
    layout = figures.busy({"two": links, "one": {"NIC 0 → network": full}}, "replayed on nothing", unit="s").layout
    assert list(layout.yaxis.categoryarray)[::-1] == list(links)
    assert list(layout.yaxis2.categoryarray) == ["one:<br>NIC 0 → network"]


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match="unknown unit 'hours'; known: s, ms, µs"):
        figures.busy({}, "", unit="hours")
