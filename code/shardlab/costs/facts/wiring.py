"""A node in a few lines: which kinds of parts are joined, by how many wires of which link.

    DGX H100:  8 x GPU to NVSwitch, NVLink 4;  8 x GPU to PCIe switch, PCIe 5.0 x16;  8 x NIC to network, ...
"""

from dataclasses import dataclass

from .hardware import Link
from .network import Node, Wire


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """Wires of a node that are alike."""

    ends: tuple[str, str]  # kinds of parts: "GPU", "NVSwitch", "PCIe switch", "CPU", "NIC", "network"
    link: Link
    bandwidth: float  # bytes/s of one wire, in one direction
    count: int

    @property
    def name(self) -> str:
        """What is joined: "8 x GPU to NVSwitch"."""
        return f"{self.count} x {' to '.join(self.ends)}"


def bundles(node: Node) -> list[Bundle]:
    """All wires of a node, those that are alike together."""
    counts: dict[tuple[tuple[str, str], Link, float], int] = {}
    for wire in node.wires:
        alike = (_ends(wire), wire.link, wire.bandwidth)
        counts[alike] = counts.get(alike, 0) + 1
    return [
        Bundle(ends=ends, link=link, bandwidth=bandwidth, count=count)
        for (ends, link, bandwidth), count in counts.items()
    ]


def _ends(wire: Wire) -> tuple[str, str]:
    """The kinds of its two parts: their names without their numbers."""
    return wire.a.rstrip(" 0123456789"), wire.b.rstrip(" 0123456789")
