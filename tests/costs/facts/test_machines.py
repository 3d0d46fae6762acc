"""Ten lines of TOML are a cluster with its price and power, and whatever is wrong in them is named."""

import contextlib
import math
from dataclasses import replace

import pytest

from shardlab.costs.facts import hardware, machines, nodes
from shardlab.costs.facts.machines import Machine
from shardlab.costs.step import axes
from shardlab.files import described
from shardlab.sharding.layout import Layout

OWN = {"chip": "H100 SXM 80 GB", "gpus": 8, "nvlink": "NVLink 4", "cards": 8, "network": "InfiniBand NDR", "nodes": 4}
CHIP = {"name": "mine", "memory_GB": 96, "memory_GB_per_s": 4000, "TFLOPs": 500}


def rates(cluster, **degrees):
    return {axis: link.bandwidth for axis, link in axes.links(cluster, Layout(**degrees)).items()}


@pytest.mark.parametrize("degrees", [{"tp": 8, "dp": 4}, {"dp": 32}, {"tp": 4, "pp": 4, "dp": 2}, {"tp": 16, "dp": 2}])
def test_a_node_of_the_parts_of_a_dgx_has_its_rates(degrees):
    own, known = machines.read(OWN).cluster, nodes.cluster("DGX H100", 4)
    assert (own.gpus, own.node.chip) == (32, known.node.chip)
    assert rates(own, **degrees) == rates(known, **degrees)


def test_plain_numbers_are_rates():
    own = machines.read({**OWN, "nvlink": 450, "network": 400.0}).cluster
    assert rates(own, tp=8, dp=4) == rates(nodes.cluster("DGX H100", 4), tp=8, dp=4)
    half = machines.read({**OWN, "network": 200}).cluster
    assert rates(half, dp=32)["replicas"] == rates(own, dp=32)["replicas"] / 2


def test_a_chip_of_ones_own_is_its_numbers():
    chip = machines.read({**OWN, "chip": {**CHIP, "watts": 500}}).cluster.node.chip
    assert (chip.memory, chip.memory_bandwidth, chip.peak_flops, chip.power) == (96e9, 4e12, 500e12, 500)


def test_the_lines_of_the_help_can_be_read():
    """Each line alone is one of its fields; the last stands in place of the first."""
    lines = [line.strip() for line in machines.__doc__.split("\n\n")[2].splitlines()]
    known = machines.read(described.tomllib.loads("\n".join(lines)))
    assert known.cluster.node.chip.name == "H100 SXM 80 GB"
    assert lines[-1] == f"# {hardware.OWN_CHIP}"
    own = machines.read(described.tomllib.loads("\n".join([lines[-1][2:], *lines[1:-1]])))
    assert own.cluster.node.chip.memory == 96e9
    assert rates(own.cluster, dp=64) == rates(known.cluster, dp=64)


def test_a_node_with_pcie_alone_and_one_that_is_known():
    alone = machines.read({"chip": "RTX 4090 24 GB", "gpus": 4}).cluster
    assert (alone.gpus, alone.num_nodes, alone.node.cards) == (4, 1, 0)
    assert machines.read({"node": "DGX A100"}, gpus=24).cluster == nodes.cluster("DGX A100", 3)


@pytest.mark.parametrize("name", nodes.RACKS)
def test_some_trays_of_a_rack_are_a_node(name):
    """Published runs use 64 of the 72 GPUs; each has the links that it has in a whole rack."""
    some = machines.read({"node": name, "gpus": 64}, gpus=256).cluster
    assert (some.gpus, some.num_nodes, some.node.gpus, some.node.cards) == (256, 4, 64, 64)
    assert nodes.rates_of_a_gpu(some.node) == nodes.rates_of_a_gpu(nodes.node(name))
    assert machines.read({"node": name}, gpus=64).cluster.node == some.node
    assert machines.read({"node": name}, gpus=256).cluster == machines.with_gpus(nodes.node(name), 256)
    assert machines.with_gpus(nodes.node(name), 8).node.gpus == 8
    assert machines.with_gpus(nodes.node(name), 144).node == nodes.node(name)
    with pytest.raises(ValueError, match="use 72 or 144, or equal parts of racks, of at least 32 GPUs"):
        machines.with_gpus(nodes.node(name), 76)
    for gpus in (62, 76):
        with pytest.raises(ValueError, match=f"gpus={gpus} is no part of a node of 72 GPUs .* multiple of 4"):
            machines.read({"node": name, "gpus": gpus})


def test_hours_become_dollars_and_joules():
    machine = machines.read({"node": "DGX H100", "nodes": 2, "dollars_per_gpu_hour": 3, "overhead": 1.5})
    assert machine.dollars(7200) == 16 * 2 * 3
    assert machine.joules(7200) == 16 * 7200 * 700 * 1.5
    assert replace(machine, watts_per_gpu=1275).watts == 1275
    assert Machine(cluster=machine.cluster).dollars(3600) == 16 * machines.RENT


# Touvron et al. 2023, Table 15 (https://arxiv.org/abs/2302.13971): GPU-hours, MWh at 400 W and 1.1 for the building.
LLAMA_TABLE_15 = [(82_432, 36), (135_168, 59), (530_432, 233), (1_022_362, 449), (809_472, 356)]


@pytest.mark.parametrize(("hours", "megawatt_hours"), LLAMA_TABLE_15)
def test_energy_follows_the_table_of_llama(hours, megawatt_hours):
    machine = Machine(cluster=nodes.cluster("DGX A100", 1), overhead=1.1)
    assert machine.watts == 400
    assert machine.joules(hours * 3600 / 8) / 3.6e9 == pytest.approx(megawatt_hours, abs=1.0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "a cluster needs chip and gpus, or node with one of DGX-1V"),
        ({**OWN, "gpu": 8}, "a cluster has no field 'gpu'; use chip, gpus"),
        ({**OWN, "gpus": 10**30}, "gpus=10*1?[.]*0* must be a number from 1e-09 to 1,000,000,000"),
        ({**OWN, "gpus": 73}, "gpus=73 must be a number from 1 to 72"),
        ({**OWN, "nodes": 10**6}, "gpus of all nodes=8000000 must be a number from 1 to 1,000,000"),
        ({**OWN, "dollars_per_gpu_hour": 1e308}, r"dollars_per_gpu_hour=1e\+308 must be a number from 1e-09"),
        ({**OWN, "network": 10**400}, "network=10.*0 must be a number from"),
        ({**OWN, "chip": {**CHIP, "memory_GB": 1e-300}}, "memory_GB=1e-300 must be a number from"),
        ({**OWN, "gpus": 0}, "gpus=0 must be a whole number of at least 1"),
        ({**OWN, "gpus": 8.0}, "gpus=8.0 must be a whole number of at least 1"),
        ({**OWN, "nodes": True}, "nodes=True must be a whole number of at least 1"),
        ({**OWN, "nvlink": -450}, "nvlink=-450 must be a name, or a number above 0"),
        ({**OWN, "nvlink": "NVLink 9"}, "no facts about the link 'NVLink 9'; the nearest: NVLink 6; .*known"),
        ({**OWN, "chip": "H900"}, "no facts about the chip 'H900'; a file .*known"),
        ({**OWN, "chip": {"name": "mine"}}, "a chip of your own needs memory_GB, memory_GB_per_s, TFLOPs"),
        ({**OWN, "memory_GB": 96}, "memory_GB is a number of the chip; write chip = {name = .*, memory_GB = 96, "),
        ({**OWN, "chip": {**CHIP, "cores": 1}}, "a chip has no field 'cores'"),
        ({"node": "DGX H100", "gpus": 4}, "gpus=4 is no part of a node of 8 GPUs"),
        ({**OWN, "chip": "GB200 186 GB"}, 'has no PCIe slot to its host, .* node = "NVL72 rack" and gpus = 64 in a'),
        ({**OWN, "node": "DGX H100"}, "node='DGX H100' has its own chip; leave one of the two out"),
        ({"node": "DGX H900"}, "no facts about the node 'DGX H900'; the nearest: DGX H200; DGX H100; .*known"),
        ({"chip": "H100 SXM 80 GB", "gpus": 8, "cards": 8}, "cards and network belong together"),
        ({**OWN, "cards": 32}, "cards=32 are more than gpus=8"),
        ({"chip": "H100 SXM 80 GB", "gpus": 8, "nodes": 2}, "which 2 nodes need; use one of its nodes, with 8 GPUs"),
        ({**OWN, "overhead": 0.5}, "overhead=0.5 must be at least 1"),
        ({**OWN, "dollars_per_gpu_hour": "two"}, "dollars_per_gpu_hour='two' must be a number above 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(table, message):
    with pytest.raises(ValueError, match=message):
        machines.read(table)


def test_counts_that_do_not_fill_nodes_and_power_that_nobody_prints_are_refused():
    with pytest.raises(ValueError, match=r"gpus=60 do not fill nodes of 8 GPUs .*; use 56 or 64"):
        machines.read(OWN, gpus=60)
    with pytest.raises(ValueError, match="does not print its power; give watts_per_gpu"):
        machines.read({"node": "TPU v6e pod"}).joules(1)


@pytest.mark.parametrize("name", [*OWN, "node", "overhead", "watts_per_gpu", "dollars_per_gpu_hour"])
def test_any_bad_value_is_refused_or_answered_soundly(name):
    for bad in (math.nan, math.inf, -1, 0, 1.5, True, None, "no such thing", [], {}, [None], {"a": 1}):
        with contextlib.suppress(ValueError):
            assert machines.read({**OWN, name: bad}).joules(1.0) > 0
