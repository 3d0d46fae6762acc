"""The matrix of nvidia-smi is read as the node that it describes, or what is missing is asked for."""

import pytest

from shardlab.costs.facts import hardware, hops, nodes, topology_matrix
from shardlab.costs.facts.network import Cluster
from shardlab.costs.traces import traffic

# https://github.com/NVIDIA/nccl/issues/1264, without the cards that belong to no GPU
HGX_H100 = """
        GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 NIC0 NIC1 NIC2 NIC5 NIC6 NIC7 NIC8 NIC9 CPU Affinity NUMA Affinity
GPU0     X   NV18 NV18 NV18 NV18 NV18 NV18 NV18 PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS  0-55,112-167    0
GPU1    NV18  X   NV18 NV18 NV18 NV18 NV18 NV18 SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  0-55,112-167    0
GPU2    NV18 NV18  X   NV18 NV18 NV18 NV18 NV18 SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  0-55,112-167    0
GPU3    NV18 NV18 NV18  X   NV18 NV18 NV18 NV18 SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  0-55,112-167    0
GPU4    NV18 NV18 NV18 NV18  X   NV18 NV18 NV18 SYS  SYS  SYS  SYS  PIX  SYS  SYS  SYS  56-111,168-223  1
GPU5    NV18 NV18 NV18 NV18 NV18  X   NV18 NV18 SYS  SYS  SYS  SYS  SYS  PIX  SYS  SYS  56-111,168-223  1
GPU6    NV18 NV18 NV18 NV18 NV18 NV18  X   NV18 SYS  SYS  SYS  SYS  SYS  SYS  PIX  SYS  56-111,168-223  1
GPU7    NV18 NV18 NV18 NV18 NV18 NV18 NV18  X   SYS  SYS  SYS  SYS  SYS  SYS  SYS  PIX  56-111,168-223  1
NIC0    PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS  SYS  SYS  SYS  SYS  SYS
NIC1    SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS  SYS  SYS  SYS  SYS
NIC2    SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS  SYS  SYS  SYS
NIC5    SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS  SYS  SYS
NIC6    SYS  SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS  SYS
NIC7    SYS  SYS  SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS  SYS
NIC8    SYS  SYS  SYS  SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X   SYS
NIC9    SYS  SYS  SYS  SYS  SYS  SYS  SYS  PIX  SYS  SYS  SYS  SYS  SYS  SYS  SYS   X

Legend:
  X    = Self
"""
# https://github.com/NVIDIA/nccl-tests/issues/178: cards with bridges, in pairs
PAIRS = """
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    CPU Affinity    NUMA Affinity
GPU0     X      NV12    NODE    NODE    SYS     SYS     SYS     SYS     0-31,64-95      0
GPU1    NV12     X      NODE    NODE    SYS     SYS     SYS     SYS     0-31,64-95      0
GPU2    NODE    NODE     X      NV12    SYS     SYS     SYS     SYS     0-31,64-95      0
GPU3    NODE    NODE    NV12     X      SYS     SYS     SYS     SYS     0-31,64-95      0
GPU4    SYS     SYS     SYS     SYS      X      NV12    NODE    NODE    32-63,96-127    1
GPU5    SYS     SYS     SYS     SYS     NV12     X      NODE    NODE    32-63,96-127    1
GPU6    SYS     SYS     SYS     SYS     NODE    NODE     X      NV12    32-63,96-127    1
GPU7    SYS     SYS     SYS     SYS     NODE    NODE    NV12     X      32-63,96-127    1
"""
PLAIN = """
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      PHB     0-11            N/A
GPU1    PHB      X      0-11            N/A
"""
UNNAMED = {"chip": "A100 PCIe 80 GB", "sockets": "sockets (AMD)"}


def test_a_server_of_the_catalogue_is_recognised():
    """Wire for wire the DGX H100, whose wiring comes from the same source."""
    node = topology_matrix.node(
        HGX_H100, chip="H100 SXM 80 GB", network="InfiniBand NDR", sockets="sockets (Sapphire Rapids)"
    )
    wires = {(frozenset((wire.a, wire.b)), wire.link, wire.width) for wire in node.wires}
    assert wires == {(frozenset((w.a, w.b)), w.link, w.width) for w in nodes.node("DGX H100").wires}
    pair = Cluster(node=node, num_nodes=2)
    assert traffic.rings(pair, range(16)).bandwidth == pytest.approx(400e9)


def test_bridged_pairs():
    """Measured there: 208 GB/s between two bridged cards, 20 among three."""
    cluster = Cluster(node=topology_matrix.node(PAIRS, **UNNAMED))
    assert hops.bandwidth(cluster.path(0, 1)) == pytest.approx(300e9)
    for gpus, measured in (((0, 1), 208e9), ((0, 1, 2), 20e9)):
        assert 0.6 < measured / traffic.rings(cluster, gpus).bandwidth < 0.8
    assert [hop.name for hop in cluster.path(0, 4)] == [
        "GPU 0 → PCIe switch 0", "PCIe switch 0 → CPU 0", "CPU 0 → CPU 1", "CPU 1 → PCIe switch 4",
        "PCIe switch 4 → GPU 4",
    ]  # fmt: skip


def test_two_cards_on_one_processor():
    cluster = Cluster(node=topology_matrix.node(PLAIN, chip="RTX 4090 24 GB"))
    passed = [hop.name.split(" → ")[0] for hop in cluster.path(0, 1)]
    assert passed == ["GPU 0", "PCIe switch 0", "CPU 0", "PCIe switch 1"]
    assert hops.bandwidth(cluster.path(0, 1)) == hardware.link("PCIe 4.0 x16").bandwidth


def test_what_the_matrix_does_not_tell_must_be_named():
    with pytest.raises(ValueError, match="no line begins with GPU0"):
        topology_matrix.node("command not found: nvidia-smi", **UNNAMED)
    with pytest.raises(ValueError, match=r"2 processors; name the link between them"):
        topology_matrix.node(PAIRS, chip="A100 PCIe 80 GB")
    with pytest.raises(ValueError, match="8 network cards; name their link"):
        topology_matrix.node(HGX_H100, chip="H100 SXM 80 GB")
    with pytest.raises(ValueError, match="no facts about the chip 'H1000'"):
        topology_matrix.node(PAIRS, chip="H1000")


def test_no_nvlink_is_no_wire():
    bare = topology_matrix.node(PAIRS.replace("NV12", "NV0 "), chip="A100 PCIe 80 GB", sockets="sockets (AMD)")
    assert {wire.link.kind for wire in bare.wires if "GPU" in wire.a} == {"PCIe"}
