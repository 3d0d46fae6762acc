"""NCCL takes LL for the shortest buffers, the ring or the switch for the longest, the tree on many nodes."""

from dataclasses import replace

import pytest

from shardlab.costs.collectives import bandwidth, library
from shardlab.costs.facts import hardware
from shardlab.costs.units import GB, MiB, us

NVLINK = replace(hardware.link("NVLink 4"), bandwidth=360 * GB)
CARDS = replace(hardware.link("InfiniBand NDR"), bandwidth=8 * 48 * GB)
NODE = library.Communicator(gpus=8, inside=NVLINK)
ADDS = replace(NODE, adds=0.85)
ALONE = replace(hardware.link("InfiniBand NDR"), bandwidth=48 * GB)


def many(nodes, **more):
    return replace(NODE, num_nodes=nodes, between=CARDS, **more)


def test_a_kilobyte_on_64_nodes_of_one_gpu_goes_down_the_tree():
    """6.8 + 2 * 6 * 5.0 µs by the constants of v2.26.2; every step of the long-message ring would take 14."""
    machine = library.Communicator(num_nodes=64, gpus=1, inside=NVLINK, between=ALONE)
    way = library.chosen(1024, machine)
    assert way.name == "tree, LL"
    assert way.latency == pytest.approx(66.8 * us)
    assert way.seconds(1024) == pytest.approx(67 * us, rel=0.01)


def test_a_node_takes_ll_then_ll128_then_simple():
    names = [library.chosen(2.0**power, NODE).protocol for power in range(10, 34)]
    assert names[0] == "LL"
    assert names[-1] == "Simple"
    assert "LL128" in names
    order = ["LL", "LL128", "Simple"]
    assert names == sorted(names, key=order.index)


def test_protocols_trade_latency_for_rate():
    rings = {way.protocol: way for way in library.choices(NODE) if way.algorithm == "ring"}
    assert rings["LL"].latency < rings["LL128"].latency < rings["Simple"].latency
    assert rings["LL"].rate < rings["LL128"].rate < rings["Simple"].rate
    assert rings["LL128"].rate == pytest.approx(0.92 * rings["Simple"].rate)


def test_the_switch_that_adds_beats_the_ring_for_long_buffers_only():
    """nccl-tests#212: about 480 GB/s of bus bandwidth with it on eight H100s, about 370 without."""
    for machine, told in ((ADDS, 480), (NODE, 370)):
        nbytes = 8.0 * GB
        found = library.chosen(nbytes, machine)
        busbw = bandwidth.bus_bandwidth(nbytes, found.seconds(nbytes), 8)
        assert busbw / GB == pytest.approx(told, rel=0.08)
    assert library.chosen(8.0 * GB, ADDS).algorithm == "NVLS"
    assert library.chosen(4096, ADDS).algorithm != "NVLS"


def test_on_two_nodes_the_bus_bandwidth_exceeds_the_cards():
    """nccl-tests#309: pairs of such nodes print up to 470 GB/s with 400 on the cards, four nodes 366."""
    nbytes = 8.0 * GB
    found = {}
    for nodes in (2, 4):
        machine = many(nodes, adds=0.85)
        way = library.chosen(nbytes, machine)
        found[nodes] = bandwidth.bus_bandwidth(nbytes, way.seconds(nbytes), machine.ranks) / GB
    assert found[2] == pytest.approx(470, rel=0.05)
    assert found[4] == pytest.approx(366, rel=0.05)


def test_short_and_middle_buffers_take_longer_than_it_says():
    """nccl#1469: sixteen nodes of H100 printed 72 to 74 µs for a KiB, and at best about 150 GB/s for 64 MiB."""
    machine = many(16, adds=0.85)
    short, middle = (library.chosen(nbytes, machine).seconds(nbytes) for nbytes in (1024.0, 64.0 * MiB))
    assert short == pytest.approx(55 * us, rel=0.01)
    assert bandwidth.bus_bandwidth(64 * MiB, middle, 128) / GB == pytest.approx(237, rel=0.02)


def test_steps_of_a_ring_grow_with_the_ranks_and_those_of_a_tree_with_their_logarithm():
    few, more = ({way.name: way.latency for way in library.choices(many(nodes))} for nodes in (4, 64))
    assert more["ring, Simple"] > 12 * few["ring, Simple"]
    assert more["tree, Simple"] - few["tree, Simple"] == pytest.approx(2 * 4 * 14 * us)
    assert library.chosen(1.0 * MiB, many(64)).algorithm == "tree"


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least two GPUs"):
        replace(NODE, gpus=1)
    with pytest.raises(ValueError, match="the link between nodes"):
        replace(NODE, num_nodes=2)
    with pytest.raises(ValueError, match=r"'K80'; known: V100"):
        replace(NODE, generation="K80")


def test_a_collective_in_a_node_starts_fills_and_flows():
    """8 GPUs: 7 steps of 3.4 µs and X = 7/8 of the bytes; LL takes 0.6 µs of each step, the start 6.6 µs."""
    nbytes = 2.0**25
    filling, wires = 7 * 3.4 * us, 7 / 8 * nbytes / NVLINK.bandwidth
    expected = 6.6 * us + 7 * 0.6 * us + wires + (filling * wires) ** 0.5
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        assert library.node_seconds(op, nbytes, 8, NVLINK) == pytest.approx(expected)
    assert library.node_seconds("all_reduce", nbytes, 8, NVLINK) == pytest.approx(2 * expected - 6.6 * us)
    adding = replace(NVLINK, adds=0.85)
    added = 9 / 8 * nbytes / (0.85 * NVLINK.bandwidth)
    switched = 25 * us + added + (25 * us * added) ** 0.5
    assert library.node_seconds("all_reduce", nbytes, 8, adding) == pytest.approx(switched)
    assert library.node_seconds("all_gather", nbytes, 1, NVLINK) == 0


@pytest.mark.parametrize(
    ("op", "link", "told"),
    [("broadcast", NVLINK, "known: all_reduce"), ("all_gather", CARDS, "leaves the node")],
)
def test_node_seconds_refuses_other_operations_and_networks(op, link, told):
    with pytest.raises(ValueError, match=told):
        library.node_seconds(op, 1024.0, 2, link)
