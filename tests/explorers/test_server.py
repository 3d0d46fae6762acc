"""The picture of a server says what the loads of its wires say, for every pair, switch and second message."""

import html
import json
import re
from itertools import product
from pathlib import Path

import pytest

from shardlab.costs.facts import hops, network
from shardlab.costs.traces import traffic
from shardlab.explorers import server
from shardlab.explorers.server import DIRECT, GPUS, NBYTES, OTHERS, OUTSIDE, SERVERS, Server
from tests.explorers.views import number

PAGE = server.TwoGpus().html()
DATA = json.loads(html.unescape(re.search(r'data-server="([^"]*)"', PAGE)[1]))
DRAWN = dict(zip(SERVERS, DATA["servers"], strict=True))
EVERY = pytest.mark.parametrize(("name", "direct"), list(product(SERVERS, (True, False))), ids=str)


def place(a, b):
    return a * (GPUS + 1) + b


def sent(a, b, other):
    """The messages of a state, from GPU to GPU of two such servers."""
    to = [a + GPUS, (a ^ 1) + GPUS] if b == OUTSIDE else [b, b ^ 1]
    second = {"nobody": [], "the GPU beside it": [(a ^ 1, to[1])], "the receiver": [(to[0], a)]}
    return [(a, to[0]), *second[other]]


@EVERY
def test_a_message_is_as_fast_as_the_load_of_its_wires_allows(name, direct):
    each, drawn = Server(name, direct), DRAWN[name]
    two = network.Cluster(node=each.cluster.node, num_nodes=2)
    for (a, b), (n, other) in product(each.paths, enumerate(OTHERS)):
        messages = sent(a, b, other)
        gpus = sorted({gpu for message in messages for gpu in message})
        pieces = [[int((here, there) in messages) for there in gpus] for here in gpus]
        rate = traffic.uneven_pairs(two, gpus, pieces).bandwidth
        told, takes, seconds, narrow = drawn["outcomes"][drawn["ends"][not direct][place(a, b)][n]]
        assert (number(told.removesuffix("/s")), number(takes)) == pytest.approx((rate, NBYTES / rate), rel=0.01)
        assert seconds == pytest.approx(NBYTES / rate, rel=1e-3)
        hop = each.paths[a, b][narrow[0]]
        assert hop.bandwidth / rate == pytest.approx(len(messages) if hop in each.second((a, b), other) else 1)


@EVERY
def test_the_wires_that_are_lit_are_the_hops_of_the_path(name, direct):
    each, wires = Server(name, direct), DRAWN[name]["wires"]
    ways = DRAWN[name]["ways"][not direct]
    assert sum(way is not None for way in ways) == len(each.paths) == GPUS * GPUS
    for (a, b), path in each.paths.items():
        steps = [wires[hop >> 1][:2][:: -1 if hop & 1 else 1] for hop in ways[place(a, b)]]
        parts = hops.parts(path)
        assert [steps[0][0], *(end for _, end in steps)] == parts
        if b == OUTSIDE:  # an answer takes the same wires back
            assert hops.parts(each.cluster.from_network(a)) == parts[::-1]


@pytest.mark.parametrize("name", SERVERS)
def test_a_wire_is_as_wide_as_its_rate_and_ends_at_its_parts(name):
    drawn, node = DRAWN[name], Server(name).cluster.node
    at = {part: (x, y) for part, x, y in drawn["parts"]}
    widest = max(drawn["wires"], key=lambda wire: wire[3])[3] / max(wire.bandwidth for wire in node.wires)
    for (a, b, _, width, x1, y1, x2, y2, bend), wire in zip(drawn["wires"], node.wires, strict=True):
        assert (a, b) == (wire.a, wire.b)
        assert width == pytest.approx(wire.bandwidth * widest, abs=0.01)
        for part, x, y in ((a, x1, y1), (b, x2, y2)):
            if part in at:
                assert abs(x - at[part][0]) <= (15 if bend else 0)
                assert y == at[part][1] + (server.UNDER if bend else 0)
    assert len(set(at.values())) == len(at)


def test_the_chapters_examples():
    """A pair without NVLink; both directions through the host of an H100, where rings reach 8 times as much."""
    assert (*DATA["start"],) == (0, 5)
    alone, beside, _ = Server("DGX-1V").outcomes((0, 5))
    assert (alone.told, beside.told) == (["6 GB/s", "167 ms"], ["3 GB/s", "333 ms"])
    through = Server("DGX H100", direct=False)
    *_, both = through.outcomes((0, OUTSIDE))
    rings = traffic.rings(network.Cluster(node=through.cluster.node, num_nodes=2), range(16)).bandwidth
    assert 8 * both.rate == pytest.approx(rings)


@EVERY
def test_the_table_has_every_pair_once(name, direct):
    found = {}
    for _, switch, _, pairs, *told in Server(name, direct).rows():
        assert switch == DIRECT[not direct]
        for some in pairs.split("; "):
            senders, goals = some.replace("another server", str(OUTSIDE)).split(" to ")
            for a, b in product(map(int, senders.split()), map(int, goals.split())):
                assert found.setdefault((a, b), told) is told
    for pair, path in Server(name, direct).paths.items():
        assert number(found[pair][0].removesuffix("/s")) == pytest.approx(hops.bandwidth(path), rel=0.01)
    assert len(found) == GPUS * GPUS


def test_without_javascript_the_table_stands_and_the_page_is_light():
    assert server.TwoGpus().table() in PAGE
    files = Path(server.__file__).parent.glob("server.*")
    assert len(PAGE) + sum(file.stat().st_size for file in files if file.suffix != ".py") < 60_000
