"""A path between two GPUs passes every wire in its direction, at the rates that are published."""

import re

import pytest

from shardlab.costs.facts import assembly, hardware, hops, network, nodes
from shardlab.costs.facts.network import NETWORK, Cluster, Node, Wire

CHIP = hardware.chip("H100 PCIe 80 GB")
PCIE, IB = hardware.link("PCIe 5.0 x16"), hardware.link("InfiniBand NDR")


def names(path):
    return [hop.name for hop in path]


def tree(**more):
    """
    GPU 0 ─┐
    GPU 1 ─┼─ PCIe switch 0 ── CPU 0 ── PCIe switch 1 ─┬─ GPU 2
    NIC 0 ─┘                                           └─ GPU 3
    """
    below = {"PCIe switch 0": ("GPU 0", "GPU 1", "NIC 0"), "PCIe switch 1": ("GPU 2", "GPU 3")}
    wires = [Wire(a=part, b=switch, link=PCIE) for switch, parts in below.items() for part in parts]
    wires += [Wire(a=switch, b="CPU 0", link=PCIE) for switch in below] + [Wire(a="NIC 0", b=NETWORK, link=IB)]
    return Node(name="tree", chip=CHIP, wires=tuple(wires), source="https://example.org", **more)


def test_a_path_names_every_direction_of_every_wire():
    one = Cluster(node=tree())
    assert names(one.path(0, 1)) == ["GPU 0 → PCIe switch 0", "PCIe switch 0 → GPU 1"]
    assert names(one.path(0, 2)) == [
        "GPU 0 → PCIe switch 0", "PCIe switch 0 → CPU 0", "CPU 0 → PCIe switch 1", "PCIe switch 1 → GPU 2",
    ]  # fmt: skip
    assert not set(names(one.path(0, 2))) & set(names(one.path(2, 0)))
    assert one.path(3, 3) == ()
    assert hops.bandwidth(one.path(0, 2)) == PCIE.bandwidth
    assert hops.bandwidth(()) == float("inf")
    assert hops.latency(one.path(0, 2)) == PCIE.latency
    assert hops.parts(one.path(0, 2)) == ["GPU 0", "PCIe switch 0", "CPU 0", "PCIe switch 1", "GPU 2"]
    assert hops.parts(()) == []


def test_between_nodes_it_leads_through_the_nearest_card():
    two = Cluster(node=tree(), num_nodes=2)
    path = two.path(2, 4)
    assert names(path) == [
        "node 0: GPU 2 → PCIe switch 1", "node 0: PCIe switch 1 → CPU 0", "node 0: CPU 0 → PCIe switch 0",
        "node 0: PCIe switch 0 → NIC 0", "node 0: NIC 0 → network",
        "node 1: network → NIC 0", "node 1: NIC 0 → PCIe switch 0", "node 1: PCIe switch 0 → GPU 0",
    ]  # fmt: skip
    assert hops.bandwidth(path) == IB.bandwidth == min(hop.bandwidth for hop in path)
    assert hops.latency(path) == IB.latency
    assert two.path(2, 4) == two.to_network(2) + two.from_network(4)
    assert hops.parts(two.from_network(4)) == ["network", "NIC 0", "PCIe switch 0", "GPU 0"]


def test_without_gpudirect_all_data_stops_at_the_processor():
    """GPU → PCIe → CPU → PCIe → GPU, also below one switch; and out to the card the same way."""
    node = tree(peer_to_peer=False)
    assert names(Cluster(node=node).path(0, 1)) == [
        "GPU 0 → PCIe switch 0", "PCIe switch 0 → CPU 0", "CPU 0 → PCIe switch 0", "PCIe switch 0 → GPU 1",
    ]  # fmt: skip
    out = names(Cluster(node=node, num_nodes=2).to_network(0))
    assert out == [
        "node 0: GPU 0 → PCIe switch 0", "node 0: PCIe switch 0 → CPU 0", "node 0: CPU 0 → PCIe switch 0",
        "node 0: PCIe switch 0 → NIC 0", "node 0: NIC 0 → network",
    ]  # fmt: skip


def test_the_widest_way_is_taken_then_the_shortest():
    thin, wide = hardware.link("NVLink 1"), hardware.link("NVLink 4")
    wires = [Wire(a="GPU 0", b="GPU 1", link=thin), *(Wire(a=f"GPU {i}", b="NVSwitch", link=wide) for i in (0, 1))]
    wires += [Wire(a="NVSwitch", b="CPU 0", link=wide), Wire(a="CPU 0", b="GPU 1", link=wide)]
    node = Node(name="odd", chip=CHIP, wires=tuple(wires), source="")
    assert [part for part, _ in node.route("GPU 0", "GPU 1")] == ["GPU 0", "NVSwitch"]


def test_gpus_pass_nothing_on():
    """In the cube mesh GPU 0 and GPU 5 have neighbours in common, and yet talk through both processors."""
    path = nodes.cluster("DGX-1V").path(0, 5)
    assert names(path)[0] == "GPU 0 → PCIe switch 0"
    assert "CPU 0 → CPU 1" in names(path)
    row = tuple(Wire(a=f"GPU {i}", b=f"GPU {i + 1}", link=PCIE) for i in range(2))
    apart = Node(name="apart", chip=CHIP, wires=row, source="")
    with pytest.raises(ValueError, match="no route leads from GPU 0 to GPU 2 in apart"):
        apart.route("GPU 0", "GPU 2")


def test_cards_are_shared_by_the_gpus_near_them():
    one_card, two_each = nodes.node("AWS p4d.24xlarge"), nodes.node("DGX A100")
    assert [one_card.card(gpu) for gpu in range(4)] == ["NIC 0", "NIC 0", "NIC 1", "NIC 1"]
    assert [two_each.card(gpu) for gpu in range(4)] == ["NIC 0", "NIC 1", "NIC 2", "NIC 3"]
    assert {tree().card(gpu) for gpu in range(4)} == {"NIC 0"}


def test_the_machine_of_the_alpha_beta_model():
    link = hardware.link("25 GbE")
    cluster = network.uniform(5, link, CHIP)
    assert cluster.gpus == 5
    assert names(cluster.path(0, 3)) == ["GPU 0 → switch", "switch → GPU 3"]
    path = cluster.path(4, 3)
    assert (hops.bandwidth(path), hops.latency(path)) == (link.bandwidth, link.latency)


def test_impossible_clusters_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Cluster(node=tree(), num_nodes=0)
    with pytest.raises(ValueError, match=r"Two RTX 4090 has no network card, which 2 nodes need; use one .*2 GPUs"):
        nodes.cluster("Two RTX 4090", 2)
    with pytest.raises(ValueError, match=r"no network card"):
        nodes.node("Two RTX 4090").card(0)
    with pytest.raises(ValueError, match="gpu=8 must be a whole number from 0 to 7"):
        Cluster(node=tree(), num_nodes=2).path(0, 8)
    with pytest.raises(ValueError, match=r"the node 'DGX H1000'; the nearest: DGX H100; .*known: DGX-1V; "):
        nodes.cluster("DGX H1000")


# ---- the nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", nodes.NODES.values(), ids=lambda node: node.name)
def test_a_node_is_whole(node):
    """Every GPU reaches every other at a rate of its links, there and back alike; every card is somebody's."""
    assert re.match(r"https://\S+", node.source)
    some = sorted({0, 1, node.gpus // 2, node.gpus - 1})
    cluster = Cluster(node=node)
    for a in some:
        for b in some:
            assert hops.bandwidth(cluster.path(a, b)) == hops.bandwidth(cluster.path(b, a)) > 0
    if node.cards:
        assert {node.card(gpu) for gpu in range(node.gpus)} == {f"NIC {card}" for card in range(node.cards)}


@pytest.mark.parametrize("node", nodes.NODES.values(), ids=lambda node: node.name)
def test_the_nvlinks_of_a_gpu_are_those_of_its_chip(node):
    """Two sources, the chip's data sheet and the node's wiring, must agree."""
    for gpu in (0, node.gpus - 1):
        kinds = ("NVLink", "Infinity Fabric", "ICI")
        wires = [wire for wire in node.wires if f"GPU {gpu}" in (wire.a, wire.b) and wire.link.kind in kinds]
        has_links = bool(wires) and "bridge" not in wires[0].link.name
        assert not has_links or sum(wire.bandwidth for wire in wires) == pytest.approx(node.chip.nvlink)
    slots = {wire.link.name for wire in node.wires if wire.link.kind == "PCIe"}
    assert node.chip.pcie is None or not slots or max(slots) == f"PCIe {node.chip.pcie}.0 x16"


def test_the_h100s_3_2_are_terabits():
    """8 cards of 400 Gb/s: 3.2 Tb/s, which is 400 GB/s for the node and 50 GB/s for each GPU."""
    node = nodes.node("DGX H100")
    assert 8 * node.network_bandwidth == pytest.approx(3.2e12)
    assert node.network_bandwidth == pytest.approx(400e9)
    assert node.network_bandwidth / node.gpus == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("name", "gbits"),
    [
        ("DGX-1V", 400), ("DGX-2", 800), ("DGX A100", 1600), ("HGX B200", 3200), ("NVL72 rack", 28_800),
        ("HGX B300", 6400), ("NVL72 rack, GB300", 57_600),
        ("AWS p3.16xlarge", 25), ("AWS p3dn.24xlarge", 100), ("AWS p4d.24xlarge", 400), ("AWS p5.48xlarge", 3200),
        ("AWS p5en.48xlarge", 3200), ("AWS p6-b200.48xlarge", 3200), ("GCP a2-highgpu-8g", 100),
        ("GCP a3-highgpu-8g", 800),
        ("GCP a3-megagpu-8g", 1600), ("GCP a3-ultragpu-8g", 3200), ("Azure ND40rs v2", 100),
        ("Azure ND96asr A100 v4", 1600), ("Azure ND96isr H100 v5", 3200),
    ],
)  # fmt: skip
def test_network_rates_as_published(name, gbits):
    assert 8 * nodes.node(name).network_bandwidth / 1e9 == pytest.approx(gbits)


def test_the_cube_mesh():
    """Six links at every GPU; the six rings use each once in each direction: 150 GB/s of rings from links of 25."""
    count = dict.fromkeys(range(8), 0)
    for pair, links in assembly.CUBE_MESH.items():
        for gpu in pair:
            count[gpu] += links
    assert set(count.values()) == {6}
    used = {}
    for ring in assembly.CUBE_RINGS:
        assert sorted(ring) == list(range(8))
        for edge in zip(ring, [*ring[1:], ring[0]], strict=True):
            used[edge] = used.get(edge, 0) + 1
    assert used == {edge: n for (a, b), n in assembly.CUBE_MESH.items() for edge in ((a, b), (b, a))}


@pytest.mark.parametrize(
    ("nvlink", "pcie", "times"),
    [(1, 3, 5.1), (2, 3, 9.5), (3, 4, 9.5), (4, 5, 7.1), (5, 5, 14.3)],
)
def test_nvlink_against_pcie_generation_by_generation(nvlink, pcie, times):
    """About five times, the first generation; since then 7 to 14 times."""
    ratio = hardware.link(f"NVLink {nvlink}").bandwidth / hardware.link(f"PCIe {pcie}.0 x16").bandwidth
    assert ratio == pytest.approx(times, abs=0.05)


def test_generations_double():
    for kind, names in {
        "InfiniBand ": ("EDR", "HDR", "NDR", "XDR"),
        "PCIe ": ("3.0 x16", "4.0 x16", "5.0 x16"),
    }.items():
        rates = [hardware.link(kind + name).bandwidth for name in names]
        assert rates == pytest.approx([rates[0] * 2**i for i in range(len(rates))])
