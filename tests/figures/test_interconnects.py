"""The figures of interconnects draw every wire and rate once, and a replay with its cluster's name."""

import pytest

from shardlab.costs.facts import nodes
from shardlab.costs.traces.replay import replay
from shardlab.costs.traces.writing import Writer
from shardlab.explorers.view import View
from shardlab.figures import interconnects, topology
from shardlab.figures import replay as figures


def by_name(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


# ---- the wiring of a node --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DGX-1V", "DGX H100", "PCIe box, 100 GbE", "Two RTX 4090", "Two RTX 3090, bridged"])
def test_every_part_and_every_wire_is_drawn_once(name):
    node = nodes.node(name)
    figure = topology.topology(node.drawn)
    parts = {part for wire in node.wires for part in (wire.a, wire.b)}
    drawn = [text for trace in figure.data if trace.hovertext is not None for text in trace.hovertext]
    assert sorted(drawn) == sorted(parts)
    parts_drawn = [trace for trace in figure.data if trace.hovertext is not None]
    places = [point for trace in parts_drawn for point in zip(trace.x, trace.y, strict=True)]
    assert len(set(places)) == len(parts), "two parts stand in one place"
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert sum(list(trace.x).count(None) for trace in lines) == len(node.wires)
    head, *rows = View(figure).plain()["table"]
    assert head == ["from", "to", "link", "GB/s in one direction"]
    assert [row[:2] for row in rows] == [[wire.a, wire.b] for wire in node.wires], "the data table has the wires"


def test_links_are_named_with_their_rate_in_one_direction():
    names = by_name(topology.topology(nodes.node("DGX-1V").drawn))
    assert {"NVLink 2, 25 GB/s", "NVLink 2, 50 GB/s", "PCIe 3.0 x16, 15.8 GB/s"} <= {*names}
    assert names["NVLink 2, 50 GB/s"].line.width > names["NVLink 2, 25 GB/s"].line.width
    assert len({trace.line.dash for trace in names.values() if trace.mode == "lines"}) == 4  # also without colour


def test_a_path_is_drawn_from_part_to_part():
    paths = {"way": ["GPU 0", "PCIe switch 0", "CPU 0"]}
    figure = topology.topology(nodes.node("DGX-1V").drawn, paths=paths)
    places = {
        text: point
        for trace in figure.data
        if trace.hovertext is not None
        for text, *point in zip(trace.hovertext, trace.x, trace.y, strict=True)
    }
    way = by_name(figure)["way"]
    assert [[x, y] for x, y in zip(way.x, way.y, strict=True)][::3] == [places["GPU 0"], places["CPU 0"]]


def test_of_a_rack_a_part_may_be_drawn():
    figure = topology.topology(nodes.node("NVL72 rack").drawn, gpus=8)
    assert len(by_name(figure)["GPU"].x) == len(by_name(figure)["network card"].x) == 8
    assert len(by_name(figure)["processor"].x) == 4


# ---- charts ----------------------------------------------------------------------------------------------------------


def test_a_choice_is_drawn_with_the_symbol_of_its_algorithm():
    lines = {"2 nodes": [("tree, LL", 10e9), ("NVLS tree, Simple", 460e9)]}
    figure = by_name(interconnects.choices([2**20, 2**33], lines, {"2 nodes": 470e9}))
    drawn = figure["2 nodes"]
    assert list(drawn.y) == [10, 460]
    assert list(drawn.marker.symbol) == [figure["tree"].marker.symbol, figure["NVLS tree"].marker.symbol]
    assert list(drawn.text) == ["tree, LL", "NVLS tree, Simple"]
    assert len({figure[name].marker.symbol for name in interconnects.ALGORITHMS}) == len(interconnects.ALGORITHMS)
    assert (list(figure["printed"].x), list(figure["printed"].y)) == ([2**33], [470])


def test_the_rate_of_a_card_is_drawn_in_gigabytes_and_the_chosen_size_is_marked():
    figure = interconnects.card_rates([2, 8], {"ring": [50e9, 25e9]}, chosen=8)
    assert list(figure.data[0].y) == [50, 25]
    assert figure.layout.shapes[0].x0 == 8


# ---- a replay --------------------------------------------------------------------------------------------------------


def played():
    """Both GPUs of the first node send through one card."""
    writers = [Writer(rank) for rank in range(10)]
    for rank in range(2):
        writers[rank].compute(1e12, "forward")
        writers[rank].wait([writers[rank].send(10**8, rank + 8, range(10))])
        writers[rank + 8].wait([writers[rank + 8].receive(10**8, rank, range(10))])
    events = [event for writer in writers for event in writer.events]
    return replay(events, nodes.cluster("PCIe box, 100 GbE", 2), link_utilisation=1.0)


def test_a_replay_shows_ranks_above_links_and_says_where():
    result = played()
    figure = figures.timeline(result.events, result.curves(1), result.where, ranks=(0, 8))
    assert figure.layout.xaxis.title.text == "time (ms)<br>replayed on 2 × PCIe box, 100 GbE"
    assert list(figure.layout.yaxis.categoryarray)[::-1] == [
        "rank 0 computes", "rank 0 communicates", "rank 8 computes", "rank 8 communicates",
    ]  # fmt: skip
    assert list(figure.layout.yaxis2.categoryarray) == list(result.curves(1))[::-1]
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]


def test_a_full_link_looks_full():
    """The card is full; PCIe, five times as fast, is busy up to a third."""
    result = played()
    figure = figures.timeline(result.events, result.curves(1), result.where)
    card = next(name for name in result.curves(1) if "network" in name)
    bars = by_name(figure)
    assert card in bars["link ≤ 100 %"].y
    assert set(result.curves(1)) - {card} == set(bars["link ≤ 33 %"].y)
    width = sum(x for name, x in zip(bars["link ≤ 100 %"].y, bars["link ≤ 100 %"].x, strict=True) if name == card)
    assert width == pytest.approx(2 * 8.0)  # ms
    assert max(bars["link ≤ 100 %"].customdata) == pytest.approx(100)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="a timeline needs events; replay some"):
        figures.timeline([], {}, "")
