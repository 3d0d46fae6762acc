"""A node in a few lines: which kinds of parts are joined, by how many wires of which link.

DGX H100:  8 × GPU to NVSwitch, NVLink 4;  8 × GPU to PCIe switch, PCIe 5.0 x16;  8 × NIC ...
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from .hardware import Link
from .network import Node, Wire


@dataclass(frozen=True, kw_only=True)
@checked
class Bundle:
    """Equal wires of a node."""

    # Kinds of parts: "GPU", "NVSwitch", "PCIe switch", "CPU", "NIC", "network".
    ends: tuple[str, str]
    link: Link
    bandwidth: Positive  # bytes/s of one wire, in one direction
    count: Count

    @property
    def name(self) -> str:
        """What the wires join: "8 × GPU to NVSwitch"."""
        return f"{self.count} × {' to '.join(self.ends)}"


@checked
def bundles(node: Node) -> list[Bundle]:
    """Group all wires of a node by the kinds of their ends, link and bandwidth."""
    counts: dict[tuple[tuple[str, str], Link, float], int] = {}
    for wire in node.wires:
        alike = (_ends(wire), wire.link, wire.bandwidth)
        counts[alike] = counts.get(alike, 0) + 1
    return [
        Bundle(ends=ends, link=link, bandwidth=bandwidth, count=count)
        for (ends, link, bandwidth), count in counts.items()
    ]


def _ends(wire: Wire) -> tuple[str, str]:
    """Return the kinds of a wire's two parts: their names without numbers."""
    return wire.a.rstrip(" 0123456789"), wire.b.rstrip(" 0123456789")
