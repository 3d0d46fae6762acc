"""A machine to plan for: a cluster, what an hour of it costs, and what power it draws.

`read` makes one from ten lines of TOML, of known parts or of plain numbers:

    chip = "H100 SXM 80 GB"          # or numbers of your own, as in the last line
    gpus = 8                         # in a node
    nvlink = "NVLink 4"              # or GB/s in one direction; left out: PCIe alone
    cards = 8                        # network cards of a node
    network = "InfiniBand NDR"       # or Gb/s of a card
    nodes = 8
    dollars_per_gpu_hour = 2.5
    watts_per_gpu = 1275             # with its share of the server; left out: the chip's limit
    overhead = 1.2                   # of the building (PUE)
    # chip = {name = "ours", memory_GB = 96, memory_GB_per_s = 4000, TFLOPs = 148, watts = 500}

TFLOPs are those of dense bf16 products. `node = "DGX H100"` stands in place of the first five
lines; `node = "NVL72 rack"` with `gpus = 64` is a node of 16 of the 18 trays of a rack.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.files import given
from shardlab.files.arguments import Count, Positive, checked
from shardlab.sharding.layout import listed

from ..units import GB, HOUR, TFLOP, Gbit
from . import hardware, limits, nodes
from .hardware import Chip, Link
from .network import NETWORK, SWITCH, Cluster, Node, Wire

# "Assuming the rental price of the H800 is $2 per GPU hour": DeepSeek-AI 2024, Table 1
# (https://arxiv.org/abs/2412.19437)
RENT = 2.0
OWN = "your own description"
PARTS = {"chip": (str, dict), "gpus": int, "nvlink": (str, float), "cards": int}
PARTS["network"] = (str, float)
CHIP = {"name": str, "memory_GB": float, "memory_GB_per_s": float, "TFLOPs": float, "watts": float}
FIELDS = {
    **PARTS,
    **{"name": str, "node": str, "nodes": int},
    **{"dollars_per_gpu_hour": float, "watts_per_gpu": float, "overhead": float},
}
KINDS = {
    str: "a text",
    int: "a whole number of at least 1",
    float: "a number above 0",
    (str, float): "a name, or a number above 0",
    (str, dict): "a name, or a table",
}


@dataclass(frozen=True, kw_only=True)
@checked
class Machine:
    """A cluster with its price and its power."""

    cluster: Cluster
    dollars_per_gpu_hour: Positive = RENT
    watts_per_gpu: Positive | None = None  # None: the maker's limit for the chip alone
    overhead: Positive = 1.0  # of the building (PUE), such as 1.1 for cooling and losses of a tenth

    def __post_init__(self) -> None:
        if self.overhead < 1:
            raise ValueError(
                f"overhead={self.overhead} must be at least 1: what the building draws, as a "
                "multiple of what its computers draw"
            )

    @property
    def watts(self) -> float:
        """What each GPU draws. Errors: ValueError for a chip whose limit is not published."""
        power = self.watts_per_gpu or self.cluster.node.chip.power
        if power is None:
            raise ValueError(
                f"the maker of the {self.cluster.node.chip.name} does not print its power; "
                "give watts_per_gpu, or --watts in a shell"
            )
        return power

    def dollars(self, seconds: float) -> float:
        """Return what all GPUs cost for this long."""
        return self.cluster.gpus * seconds / HOUR * self.dollars_per_gpu_hour

    def joules(self, seconds: float) -> float:
        """Return the energy for this long, the building's overhead included."""
        return self.cluster.gpus * seconds * self.watts * self.overhead


@checked
def with_gpus(node: Node, gpus: Count) -> Cluster:
    """Join as many nodes as have `gpus` GPUs, or equal parts of as few racks as have them.

    Fewer GPUs than another node has are not a cluster. Errors: ValueError with the counts that
    work.
    """
    if gpus % node.gpus:
        if of_each := nodes.of_each_rack(node, gpus):
            return Cluster(node=nodes.part(node, of_each), num_nodes=gpus // of_each)
        least = max(1, gpus // node.gpus) * node.gpus
        some_trays = (
            f", or equal parts of racks, of at least {nodes.LEAST} GPUs, such as 64 of each"
            if node.name in nodes.RACKS
            else ""
        )
        raise ValueError(
            f"gpus={gpus} do not fill nodes of {node.gpus} GPUs ({node.name}); "
            f"use {least} or {least + node.gpus}{some_trays}"
        )
    return Cluster(node=node, num_nodes=gpus // node.gpus)


@checked
@given.in_one_line()
def read(table: Mapping[str, Any], gpus: Count | None = None) -> Machine:
    """Turn the contents of a TOML file into a machine.

    gpus: of all nodes together; None: as many as the file's `nodes` have.
    Errors: ValueError that names the field that is missing, of a wrong kind, or unknown.
    """
    fields = _checked_fields(table, FIELDS, "a cluster")
    if "node" in fields:
        if clash := [name for name in PARTS if name in fields and name != "gpus"]:
            named = f"node={fields['node']!r}"
            raise ValueError(f"{named} has its own {clash[0]}; leave one of the two out")
        node = nodes.node(fields["node"])
        in_a_rack = gpus if node.name in nodes.RACKS else None
        size = fields.get("gpus", min(in_a_rack or node.gpus, node.gpus))
        if size != node.gpus:
            node = nodes.part(node, size)
    else:
        node = _own_node(fields)
    gpus = gpus or fields.get("nodes", 1) * node.gpus
    limits.hold("gpus of all nodes", gpus, limits.GPUS)
    cluster = with_gpus(node, gpus)
    costs = ("dollars_per_gpu_hour", "watts_per_gpu", "overhead")
    return Machine(cluster=cluster, **{name: fields[name] for name in costs if name in fields})


def _checked_fields(
    table: Mapping[str, Any], known: Mapping[str, Any], what: str
) -> dict[str, Any]:
    for name, value in table.items():
        if known is FIELDS and name in CHIP and name not in FIELDS:
            raise ValueError(f"{name} is a number of the chip; write {hardware.OWN_CHIP}")
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}; use {listed(known)}")
        if not _fits(value, known[name]):
            raise ValueError(f"{name}={value!r} must be {KINDS[known[name]]}")
        if isinstance(value, int | float):
            limits.hold(name, value, limits.NUMBER, 1 / limits.NUMBER)
    return dict(table)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind; a number is above 0, and may be whole where it need not be."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        whole = isinstance(value, int) and int in kinds
        return (whole or float in kinds) and 0 < value < float("inf")
    return isinstance(value, kinds)


def _own_node(fields: Mapping[str, Any]) -> Node:
    if missing := [name for name in ("chip", "gpus") if name not in fields]:
        raise ValueError(
            f"a cluster needs {' and '.join(missing)}, or node with one of {'; '.join(nodes.NODES)}"
        )
    limits.hold("gpus", fields["gpus"], limits.GPUS_OF_A_NODE)
    if ("cards" in fields) != ("network" in fields):
        raise ValueError("cards and network belong together: give both, or neither for one node")
    if fields.get("cards", 0) > fields["gpus"]:
        raise ValueError(
            f"cards={fields['cards']} are more than gpus={fields['gpus']}; give one card for each "
            "GPU, and network the sum of what stands in its place"
        )
    chip = _chip(fields["chip"])
    name = fields.get("name", f"{fields['gpus']} × {chip.name}")
    return Node(name=name, chip=chip, wires=tuple(_wires(fields, chip)), source=OWN)


def _chip(given: str | Mapping[str, Any]) -> Chip:
    """Look a chip up, or make one of its numbers."""
    if isinstance(given, str):
        return hardware.chip(given)
    own = _checked_fields(given, CHIP, "a chip")
    if missing := [name for name in CHIP if name not in own and name != "watts"]:
        raise ValueError(f"a chip of your own needs {listed(missing)}")
    return Chip(
        name=own["name"],
        memory=own["memory_GB"] * GB,
        memory_bandwidth=own["memory_GB_per_s"] * GB,
        peaks={"bf16": own["TFLOPs"] * TFLOP},
        pcie=5,
        power=own.get("watts"),
        announced="",
        source=OWN,
    )


def _wires(fields: Mapping[str, Any], chip: Chip) -> Iterator[Wire]:
    """Yield NVLinks to a switch, and PCIe to the cards, as in a DGX: one PCIe switch for a card."""
    gpus = fields["gpus"]
    cards = fields.get("cards", 0)
    switches = max(1, cards)
    slot = hardware.host_link(chip)
    for gpu in range(gpus):
        if "nvlink" in fields:
            yield Wire(a=f"GPU {gpu}", b=SWITCH, link=_link(fields["nvlink"], "NVLink"))
        yield Wire(a=f"GPU {gpu}", b=f"PCIe switch {gpu * switches // gpus}", link=slot)
    for switch in range(switches):
        yield Wire(a=f"PCIe switch {switch}", b="CPU 0", link=slot)
    for card in range(cards):
        yield Wire(a=f"NIC {card}", b=f"PCIe switch {card}", link=slot)
        yield Wire(a=f"NIC {card}", b=NETWORK, link=_link(fields["network"], "network"))


def _link(given: str | float, kind: str) -> Link:
    """Look a link up, or make one of its rate: GB/s of NVLink, Gb/s of the network."""
    if isinstance(given, str):
        return hardware.link(given)
    nvlink = kind == "NVLink"
    return Link(
        name=f"{kind}, {given:g} {'GB/s' if nvlink else 'Gb/s'}",
        kind=kind,
        bandwidth=given * (GB if nvlink else Gbit),
        latency=hardware.NVLINK_STEP if nvlink else hardware.NETWORK_STEP,
        source=OWN,
        latency_source=hardware.NCCL,
    )
