"""Servers and racks as makers and cloud providers describe them: their parts and their wires.

Chips and links are those of `hardware`; each node names the source of its assembly. Instances of
clouds are the rows of `clouds.csv`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shardlab.files.arguments import Count, checked

from . import assembly, hardware, names, tables
from .network import Cluster, Node, Wire

# The share of NVLink's rate that NCCL's model counts on when the switch adds ("nvlsEfficiency" for
# Hopper, Blackwell). https://github.com/NVIDIA/nccl/blob/v2.26.2-1/src/graph/tuning.cc
ADDS_HOPPER, ADDS_BLACKWELL = 0.85, 0.74

_GCP = "https://docs.cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"
_NVL72 = "https://docs.nvidia.com/multi-node-nvlink-systems/multi-node-tuning-guide/system.html"


def _node(name: str, chip: str, wires: Iterable[Wire], source: str, **more: Any) -> Node:
    return Node(name=name, chip=hardware.chip(chip), wires=tuple(wires), source=source, **more)


def _dgx1(name: str, chip: str, network: str, cards: int, source: str, *, width: int = 1) -> Node:
    pcie = assembly.pcie(3, gpus=8, switches=4, cards=cards, cpus=2, sockets="sockets (Broadwell)")
    mesh = assembly.mesh(assembly.CUBE_MESH, "NVLink 2", links=6)
    wires = (*mesh, *pcie, *assembly.cards(cards, network, width))
    return _node(name, chip, wires, source, rings=assembly.CUBE_RINGS)


def _a100(name: str, chip: str, network: str, cards: int, source: str, *, width: int = 1) -> Node:
    pcie = assembly.pcie(4, gpus=8, switches=4, cards=cards, cpus=2, sockets="sockets (AMD)")
    wires = (*assembly.nvswitch(8, "NVLink 3"), *pcie, *assembly.cards(cards, network, width))
    return _node(name, chip, wires, source)


def _h100(name: str, chip: str, network: str, cards: int, source: str, *, width: int = 1) -> Node:
    pcie = assembly.pcie(
        5, gpus=8, switches=cards, cards=cards, cpus=2, sockets="sockets (Sapphire Rapids)"
    )
    wires = (*assembly.nvswitch(8, "NVLink 4"), *pcie, *assembly.cards(cards, network, width))
    return _node(name, chip, wires, source, adds=ADDS_HOPPER)


def _b200(name: str, chip: str, network: str, cards: int, source: str, *, width: int = 1) -> Node:
    pcie = assembly.pcie(
        5, gpus=8, switches=cards, cards=cards, cpus=2, sockets="sockets (Sapphire Rapids)"
    )
    wires = (*assembly.nvswitch(8, "NVLink 5"), *pcie, *assembly.cards(cards, network, width))
    return _node(name, chip, wires, source, adds=ADDS_BLACKWELL)


def _pcie_box(network: str) -> Node:
    pcie = assembly.pcie(5, gpus=8, switches=2, cards=1, cpus=1, sockets="")
    source = (
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (an "
        "example of ours: all GPUs below one processor, so that they reach each other without "
        "crossing to another)"
    )
    wires = (*pcie, *assembly.cards(1, network))
    return _node(f"PCIe box, {network}", "H100 PCIe 80 GB", wires, source)


def _workstation(name: str, chip: str, wires: Iterable[Wire], source: str) -> Node:
    """Make a node of two GPUs whose driver allows no peer-to-peer traffic over PCIe."""
    slots = [
        Wire(a=f"GPU {gpu}", b="CPU 0", link=hardware.link("PCIe 4.0 x16")) for gpu in range(2)
    ]
    return _node(name, chip, wires=(*wires, *slots), source=source, peer_to_peer=False)


def _full_mesh(name: str, chip: str, link: str, source: str) -> Node:
    """Make a node of eight GPUs, each with one link to each other one."""
    pairs = {(a, b): 1 for b in range(8) for a in range(b)}
    wires = assembly.mesh(pairs, link, links=7)
    source += " (eight GPUs, each linked to the seven others; without its host and network)"
    return _node(name, chip, wires=wires, source=source, rings=assembly.FULL_MESH_RINGS)


BOARDS = {"DGX-1V": _dgx1, "DGX A100": _a100, "DGX H100": _h100, "HGX B200": _b200}


@dataclass(frozen=True, kw_only=True)
@checked
class Instance:
    """A cloud's instance: the GPUs and the network that it has, on a board that is known."""

    name: str
    board: str  # one of BOARDS
    chip: str
    network: str
    cards: Count
    width: Count = 1  # cards that stand in the place of one
    source: str

    def __post_init__(self) -> None:
        if self.board not in BOARDS:
            raise ValueError(f"board={self.board!r} must be one of {', '.join(BOARDS)}")
        hardware.chip(self.chip)
        hardware.link(self.network)

    @property
    def node(self) -> Node:
        """The instance, wired as its board."""
        wider = f", {self.width} cards in the place of one" if self.width > 1 else ""
        source = (
            f"{self.source} (GPUs and network; the wiring inside is taken to be that of the "
            f"{self.board}{wider})"
        )
        make = BOARDS[self.board]
        return make(self.name, self.chip, self.network, self.cards, source, width=self.width)


_BRIDGE = Wire(a="GPU 0", b="GPU 1", link=hardware.link("NVLink bridge (GeForce)"))

CLOUDS = ("AWS ", "GCP ", "Azure ")  # the names of whose instances are in clouds.csv
# Racks of trays -> the slot of each card, and its network.
RACKS = {
    "NVL72 rack": ("PCIe 5.0 x16", "InfiniBand NDR"),
    "NVL72 rack, GB300": ("PCIe 6.0 x16", "InfiniBand XDR"),
}
TRAY = 4  # GPUs
LEAST = 32  # GPUs of a rack, where several racks are used in part
# Other names that people type; those of clouds are known without the cloud's, too.
ALSO = {
    "HGX H100": "DGX H100",
    "HGX H200": "DGX H200",
    "DGX B200": "HGX B200",
    "DGX B300": "HGX B300",
    "NVL72": "NVL72 rack",
    "GB200 NVL72": "NVL72 rack",
    "GB300 NVL72": "NVL72 rack, GB300",
    "MI300X": "MI300X platform",
    "MI355X": "MI355X platform",
}
NODES: dict[str, Node] = {
    node.name: node
    for node in (
        _dgx1(
            "DGX-1V",
            "V100 SXM2 32 GB",
            "InfiniBand EDR",
            cards=4,
            source="https://images.nvidia.com/content/pdf/dgx1-v100-system-architecture-whitepaper.pdf; "
            "the mesh is also in the topology file of https://github.com/NVIDIA/nccl/issues/671",
        ),
        _node(
            "DGX-2",
            "V100 SXM2 32 GB",
            wires=(
                *assembly.nvswitch(16, "NVLink 2"),
                *assembly.pcie(3, 16, 8, 8, 2, "sockets (Skylake)"),
                *assembly.cards(8, "InfiniBand EDR"),
            ),
            source="https://docs.nvidia.com/dgx/dgx2-user-guide/ and `nvidia-smi topo -m` in "
            "https://github.com/NVIDIA/nccl-tests/issues/78",
        ),
        _a100(
            "DGX A100",
            "A100 SXM 80 GB",
            "InfiniBand HDR",
            cards=8,
            source="https://docs.nvidia.com/dgx/dgxa100-user-guide/ and the topology file in "
            "https://github.com/NVIDIA/nccl/issues/1505",
        ),
        _h100(
            "DGX H100",
            "H100 SXM 80 GB",
            "InfiniBand NDR",
            cards=8,
            source="https://docs.nvidia.com/dgx/dgxh100-user-guide/ and `nvidia-smi topo -m` in "
            "https://github.com/NVIDIA/nccl/issues/1264",
        ),
        _h100(
            "DGX H200",
            "H200 SXM 141 GB",
            "InfiniBand NDR",
            cards=8,
            source="https://docs.nvidia.com/dgx/dgxh100-user-guide/ (one guide for the DGX H100 and "
            "the DGX H200)",
        ),
        _b200(
            "HGX B200",
            "B200 SXM 180 GB",
            "InfiniBand NDR",
            cards=8,
            source="https://docs.nvidia.com/dgx/dgxb200-user-guide/ (the board itself has no "
            "network cards: they are the DGX B200's; the wiring of PCIe is taken to be that of the "
            "DGX H100)",
        ),
        _node(
            "HGX B300",
            "B300 SXM 270 GB",
            wires=(
                *assembly.nvswitch(8, "NVLink 5"),
                *assembly.pcie(
                    6,
                    gpus=8,
                    switches=8,
                    cards=8,
                    cpus=2,
                    sockets="sockets (Sapphire Rapids)",
                    host=5,
                ),
                *assembly.cards(8, "InfiniBand XDR"),
            ),
            source="https://acecloud.ai/blog/nvidia-hgx-b300 (8 ConnectX-8 cards of 800 Gb/s on "
            "the board; the wiring of PCIe is taken to be that of the DGX H100, with the card's "
            "own switch of PCIe 6.0)",
            adds=ADDS_BLACKWELL,
        ),
        _node(
            "NVL72 rack",
            "GB200 186 GB",
            wires=assembly.rack(*RACKS["NVL72 rack"]),
            source=f"{_NVL72} (18 trays of 4 GPUs) and {_GCP} "
            "(A4X: 4 cards of 400 Gb/s for each tray)",
            adds=ADDS_BLACKWELL,
        ),
        _node(
            "NVL72 rack, GB300",
            "GB300 279 GB",
            wires=assembly.rack(*RACKS["NVL72 rack, GB300"]),
            source="https://docs.nvidia.com/enterprise-reference-architectures/nvl72-ai-factory/latest/components.html "
            "(4 GPUs, 2 processors and 4 ConnectX-8 for each tray; the wiring inside is taken to "
            "be that of the rack with GB200)",
            adds=ADDS_BLACKWELL,
        ),
        _full_mesh(
            "MI300X platform",
            "MI300X 192 GB",
            "Infinity Fabric (MI300X)",
            "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/white-papers/amd-cdna-3-white-paper.pdf",
        ),
        _full_mesh(
            "MI355X platform",
            "MI355X 288 GB",
            "Infinity Fabric (MI355X)",
            "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/white-papers/amd-cdna-4-architecture-whitepaper.pdf",
        ),
        _node(
            "TPU v6e pod",
            "TPU v6e 32 GB",
            wires=assembly.torus(16, "ICI (TPU v6e)"),
            source="https://docs.cloud.google.com/tpu/docs/v6e (a torus of two dimensions, 16 x 16 "
            "chips, each counted as a GPU here; without its hosts and network)",
            rings=assembly.torus_rings(16),
            forwards=True,
        ),
        *(_pcie_box(network) for network in ("InfiniBand NDR", "100 GbE", "25 GbE", "10 GbE")),
        _workstation(
            "Two RTX 3090, bridged", "RTX 3090 24 GB", wires=[_BRIDGE], source=_BRIDGE.link.source
        ),
        _workstation(
            "Two RTX 4090",
            "RTX 4090 24 GB",
            wires=[],
            source="https://forums.developer.nvidia.com/t/parallel-training-with-4-cards-4090-cannot-be-performed-on-amd-5975wx-stuck-at-the-beginning/237813"
            " (no direct way between cards)",
        ),
        *(each.node for each in tables.rows("clouds", Instance)),
    )
}

_CLOUDS = {each.partition(" ")[2]: each for each in NODES if each.startswith(CLOUDS)}
_BY_NAME = {
    typed.lower(): each for typed, each in {**_CLOUDS, **ALSO, **{n: n for n in NODES}}.items()
}


@checked
def node(name: str) -> Node:
    """Return the node called `name`, or by another of its names, in capitals or not.

    Errors: ValueError that lists the known names.
    """
    if name.lower() not in _BY_NAME:
        words = {known: each.chip.name for known, each in NODES.items()}
        way_out = "`python -m shardlab.plan --help` shows how to describe another"
        raise names.unknown("node", name, words, way_out)
    return NODES[_BY_NAME[name.lower()]]


@checked
def part(whole: Node, gpus: Count) -> Node:
    """Return a node of some trays of a rack.

    Errors: ValueError for another node, and for GPUs that are no whole trays of it.
    """
    if whole.name not in RACKS or gpus % TRAY or gpus >= whole.gpus:
        raise ValueError(
            f"gpus={gpus} is no part of a node of {whole.gpus} GPUs ({whole.name}); use "
            f"{whole.gpus}, or of {' and '.join(RACKS)} a smaller multiple of {TRAY}"
        )
    wires = assembly.rack(*RACKS[whole.name], gpus)
    return replace(whole, name=f"{gpus} GPUs of the {whole.name}", wires=wires)


@checked
def of_each_rack(rack: Node, gpus: Count) -> int | None:
    """Find how many GPUs of each rack make `gpus`, with as few equal parts of racks as can be.

    None: no rack, or several would have fewer than LEAST GPUs each.
    """
    sizes = range(rack.gpus, 0, -TRAY) if rack.name in RACKS else ()
    fitting = (each for each in sizes if gpus % each == 0 and (each == gpus or each >= LEAST))
    return next(fitting, None)


@checked
def rates_of_a_gpu(each: Node) -> dict[str, float]:
    """Return one GPU's bytes/s in one direction, by kind of link; of network cards, its share."""
    own = [wire for wire in each.wires if "GPU 0" in (wire.a, wire.b)]
    kinds = {
        kind: sum(wire.bandwidth for wire in own if wire.link.kind == kind)
        for kind in ("NVLink", "Infinity Fabric", "ICI", "PCIe")
    }
    kinds["network"] = each.network_bandwidth / each.gpus
    return {kind: rate for kind, rate in kinds.items() if rate}


@checked
def cluster(name: str, num_nodes: Count = 1) -> Cluster:
    """Join `num_nodes` nodes called `name`.

    Errors: ValueError for an unknown name, or nodes without cards.
    """
    return Cluster(node=node(name), num_nodes=num_nodes)
