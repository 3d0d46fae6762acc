"""The matrix of nvidia-smi is read as the node that it describes, or what is missing is asked for."""

import itertools
import warnings

import pytest

from shardlab.costs.facts import hardware, hops, nodes, topology_matrix
from shardlab.costs.facts.network import Cluster, Node
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


def square(name: str, *, nvlinks: str, apart: str = "NODE", gpus: int = 4) -> str:
    """Return a matrix in which GPUs share NVLinks, except the one called `name`."""
    devices = [f"GPU{number}" for number in range(gpus)]
    lines = [" ".join([*devices, "CPU Affinity", "NUMA Affinity"])]
    for row in devices:
        cells = [
            "X" if row == column else apart if name in (row, column) else nvlinks for column in devices
        ]
        lines.append(" ".join([row, *cells, "0-55", "0"]))
    return "\n".join(lines)


def nvlinks(node: Node) -> dict[tuple[str, str], float]:
    """Return GB/s of the NVLinks between two parts."""
    return {(w.a, w.b): w.bandwidth / 1e9 for w in node.wires if w.link.kind == "NVLink"}


@pytest.mark.parametrize(
    ("chip", "cell", "rate"),
    [
        ("H100 SXM 80 GB", "NV18", 450),
        ("H100 SXM 80 GB", "NV16", 400),
        ("H100 SXM 80 GB", "NV8", 200),  # an H800, called by its sister's name
        ("A100 SXM 80 GB", "NV12", 300),
        ("A100 SXM 80 GB", "NV8", 200),  # an A800
        ("B200 SXM 180 GB", "NV18", 900),
    ],
)
def test_nvlinks_count_against_those_of_the_chip(chip: str, cell: str, rate: float):
    """More than its own links in a row: a switch. Its rate is that of the links that are there."""
    node = topology_matrix.node(square("", nvlinks=cell), chip=chip)
    assert nvlinks(node) == pytest.approx({(f"GPU {gpu}", "NVSwitch"): rate for gpu in range(4)})


def test_nvlinks_of_four_gpus_without_a_switch():
    """Each of the 12 links of an A100 leads to one of three others; the switch of a pair shows all."""
    node = topology_matrix.node(square("", nvlinks="NV4"), chip="A100 SXM 80 GB")
    assert nvlinks(node) == {(f"GPU {a}", f"GPU {b}"): 100.0 for a, b in itertools.combinations(range(4), 2)}
    pair = topology_matrix.node(square("", nvlinks="NV18", gpus=2), chip="H100 SXM 80 GB")
    assert nvlinks(pair) == {("GPU 0", "GPU 1"): 450.0}
    bridge = topology_matrix.node(square("", nvlinks="NV4", gpus=2), chip="A100 PCIe 80 GB")
    assert nvlinks(bridge) == pytest.approx({("GPU 0", "GPU 1"): 100.0})  # one bridge of three


@pytest.mark.parametrize("lost", ["GPU0", "GPU2", "GPU3"])
def test_a_gpu_off_the_switch_slows_nobody_else(lost: str):
    name = lost.replace("GPU", "GPU ")
    with pytest.warns(UserWarning, match=f"{name} has lost NVLink") as caught:
        node = topology_matrix.node(square(lost, nvlinks="NV18"), chip="H100 SXM 80 GB")
    assert caught[0].filename == __file__
    assert nvlinks(node) == {(f"GPU {gpu}", "NVSwitch"): 450.0 for gpu in range(4) if f"GPU {gpu}" != name}


def test_two_switches_that_nothing_joins():
    halves = square("", nvlinks="NV18", gpus=6).splitlines()
    rows = [" ".join(halves[0].split())]
    for number, line in enumerate(halves[1:]):
        words = line.split()
        far = range(4, 7) if number < 3 else range(1, 4)
        rows.append(" ".join("NODE" if at in far else word for at, word in enumerate(words)))
    wires = nvlinks(topology_matrix.node("\n".join(rows), chip="H100 SXM 80 GB"))
    assert [switch for _, switch in wires] == ["NVSwitch"] * 3 + ["NVSwitch 1"] * 3


@pytest.mark.parametrize(
    ("chip", "cell", "said"),
    [
        ("A100 SXM 80 GB", "NV18", "GPU0 and GPU1 share 18 NVLinks, but A100 SXM 80 GB has 12"),
        ("V100 SXM2 32 GB", "NV12", "share 12 NVLinks, but V100 SXM2 32 GB has 6"),
        ("RTX 4090 24 GB", "NV4", "share 4 NVLinks, but RTX 4090 24 GB has 0"),
        ("MI300X 192 GB", "NV4", "share 4 NVLinks, but MI300X 192 GB has 0"),
    ],
)
def test_more_nvlinks_than_the_chip_has(chip: str, cell: str, said: str):
    with pytest.raises(ValueError, match=f"{said}; name the chip"):
        topology_matrix.node(square("", nvlinks=cell), chip=chip)


def test_gpus_of_one_processor_whose_numa_node_is_not_told():
    """The same cores make the same processor: no link between two is asked for."""
    for told in ("N/A", "", "0-1", "0,1"):
        text = PAIRS.replace("      0\n", f"      {told}\n").replace("      1\n", f"      {told}\n")
        node = topology_matrix.node(text, **UNNAMED)
        assert node.wires == topology_matrix.node(PAIRS, **UNNAMED).wires


def test_a_demand_says_how_it_is_met():
    with pytest.raises(ValueError, match=r"sockets='sockets \(AMD\)'; known: .*sockets \(Sapphire Rapids\)"):
        topology_matrix.node(PAIRS, chip="A100 PCIe 80 GB")
    with pytest.raises(ValueError, match=r"network='InfiniBand NDR'; known: .*InfiniBand HDR"):
        topology_matrix.node(HGX_H100, chip="H100 SXM 80 GB")


CARDS = """GPU0 GPU1 NIC0 NIC1 NIC2 CPU Affinity NUMA Affinity
GPU0 X NV18 {0} PIX NODE 0-79 0
GPU1 NV18 X {0} NODE PIX 0-79 0
NIC0 {0} {0} X {0} {0}
NIC1 PIX NODE {0} X NODE
NIC2 NODE PIX {0} NODE X
"""
H100 = {"chip": "H100 SXM 80 GB", "network": "InfiniBand NDR"}


@pytest.mark.parametrize("way", ["SYS", "NODE", "PHB"])
def test_a_card_that_is_nobodys_nearest_is_for_management(way: str):
    with pytest.warns(UserWarning, match=r"left out, .*: NIC0; choose yourself with cards=\['NIC0'"):
        node = topology_matrix.node(CARDS.format(way), **H100)
    assert node.network_bandwidth == 2 * 50e9
    chosen = topology_matrix.node(CARDS.format("NODE"), cards=["NIC0", "NIC2"], **H100)
    assert chosen.network_bandwidth == 2 * 50e9
    assert chosen.wires != node.wires
    with pytest.raises(ValueError, match=r"no network card 'NIC7' in the matrix; it has \['NIC0'"):
        topology_matrix.node(CARDS.format("NODE"), cards=["NIC7"], **H100)


def table(*near: str, cards: int) -> str:
    """Return a matrix of GPUs beside cards: near[g] lists the cards that share a switch with g."""
    gpus, nics = [f"GPU{g}" for g in range(len(near))], [f"NIC{c}" for c in range(cards)]
    lines = [" ".join([*gpus, *nics])]
    for g, row in enumerate(gpus):
        lines.append(" ".join([row, *("X" if other == row else "NV18" for other in gpus),
                               *("PIX" if str(c) in near[g] else "NODE" for c in range(cards))]))  # fmt: skip
    for c, row in enumerate(nics):
        lines.append(" ".join([row, *("PIX" if str(c) in each else "NODE" for each in near),
                               *("X" if other == row else "NODE" for other in nics)]))  # fmt: skip
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("near", "cards", "used", "left"),
    [
        (("0", "1"), 2, 2, ""),
        (("0", "0"), 1, 1, ""),  # a card for two GPUs
        (("01", "23"), 4, 4, ""),  # two for each GPU
        (("01", "0"), 2, 2, ""),
        (("012", "3", "4"), 5, 3, "NIC1, NIC2"),
        (("012", "345", "6", "7"), 8, 4, "NIC1, NIC2, NIC4, NIC5"),
        (("012", "012"), 3, 2, "NIC2"),
    ],
)
def test_cards_equally_near_count_where_each_gpu_has_as_many(near, cards, used, left):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node = topology_matrix.node(table(*near, cards=cards), **H100)
    assert node.cards == used
    said = f"left out, because others are as near, and one counts for each GPU: {left}; choose yourself with cards="
    assert [str(each.message).startswith(said) for each in caught] == [True] * bool(left)


@pytest.mark.parametrize(("chip", "gpus"), [("H100 SXM 80 GB", 4), ("V100 SXM2 32 GB", 2)])
def test_a_table_that_leaves_nvlinks_out_is_not_one_of_broken_gpus(chip, gpus):
    with pytest.raises(ValueError, match=f"no two GPUs share NVLinks, which the {chip} has; `nvidia-smi topo -mp`"):
        topology_matrix.node(square("", nvlinks="NODE", gpus=gpus), chip=chip)
    with pytest.warns(UserWarning, match=r"GPU \d has lost NVLink"):
        lost = topology_matrix.node(square("", nvlinks="NV0", gpus=gpus), chip=chip)
    assert nvlinks(lost) == {}
