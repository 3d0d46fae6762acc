"""Every wire of a node is in one bundle, which has a name."""

import pytest

from shardlab.costs.facts import nodes, wiring
from shardlab.costs.units import GB

# By hand, from the drawings of the makers: kinds of parts and link -> wires, GB/s of each in one direction.
BY_HAND = {
    "DGX H100": {
        ("GPU", "NVSwitch", "NVLink 4"): {450: 8},
        ("GPU", "PCIe switch", "PCIe 5.0 x16"): {63.02: 8},
        ("NIC", "PCIe switch", "PCIe 5.0 x16"): {63.02: 8},
        ("PCIe switch", "CPU", "PCIe 5.0 x16"): {63.02: 8},
        ("CPU", "CPU", "sockets (Sapphire Rapids)"): {22: 1},
        ("NIC", "network", "InfiniBand NDR"): {50: 8},
    },
    "DGX-1V": {  # of 28 pairs, 8 have one NVLink and 8 have two
        ("GPU", "GPU", "NVLink 2"): {25: 8, 50: 8},
        ("GPU", "PCIe switch", "PCIe 3.0 x16"): {15.75: 8},
        ("NIC", "PCIe switch", "PCIe 3.0 x16"): {15.75: 4},
        ("PCIe switch", "CPU", "PCIe 3.0 x16"): {15.75: 4},
        ("CPU", "CPU", "sockets (Broadwell)"): {6: 1},
        ("NIC", "network", "InfiniBand EDR"): {12.5: 4},
    },
    "Two RTX 4090": {("GPU", "CPU", "PCIe 4.0 x16"): {31.51: 2}},
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_joined_by_hand(name):
    found = {}
    for each in wiring.bundles(nodes.node(name)):
        rates = found.setdefault((*each.ends, each.link.name), {})
        rates[each.bandwidth / GB] = each.count
    assert found.keys() == BY_HAND[name].keys()
    for which, rates in BY_HAND[name].items():
        assert sorted(found[which]) == pytest.approx(sorted(rates), rel=1e-3)
        assert [found[which][rate] for rate in sorted(found[which])] == [rates[rate] for rate in sorted(rates)]


@pytest.mark.parametrize("name", nodes.NODES)
def test_every_wire_is_in_one_bundle(name):
    node = nodes.node(name)
    found = wiring.bundles(node)
    assert sum(each.count for each in found) == len(node.wires)
    together = sum(each.count * each.bandwidth for each in found if "network" in each.ends)
    assert together == pytest.approx(node.network_bandwidth)


def test_a_bundle_has_a_name():
    assert wiring.bundles(nodes.node("NVL72 rack"))[0].name == "72 × GPU to NVSwitch"
