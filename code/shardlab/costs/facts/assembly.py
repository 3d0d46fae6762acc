"""Put nodes together: the wires of switches, meshes, racks and tori.

Rings are the orders in which messages visit the GPUs of a mesh or a torus to use each wire.
"""

from collections.abc import Iterator

from shardlab.files.arguments import Count, checked

from . import hardware
from .network import NETWORK, Wire

# NVLinks of the DGX-1 with V100, a "hybrid cube mesh": one or two between two GPUs, six at each, of
# 25 GB/s.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Three cycles that together use each of those links once; there and back they make six rings.
_CYCLES = ((0, 1, 2, 3, 7, 5, 6, 4), (0, 2, 6, 7, 4, 5, 1, 3), (0, 3, 2, 1, 5, 6, 7, 4))
CUBE_RINGS = (*_CYCLES, *(cycle[::-1] for cycle in _CYCLES))

# Seven orders of eight GPUs that together use each link between two of them once in each direction:
# found by search; that there are such orders: Tillson 1980, doi:10.1016/0095-8956(80)90044-1.
FULL_MESH_RINGS = (
    (0, 2, 5, 4, 7, 6, 3, 1),
    (0, 3, 4, 1, 7, 2, 6, 5),
    (0, 5, 1, 3, 2, 4, 6, 7),
    (0, 4, 5, 6, 1, 2, 7, 3),
    (0, 6, 2, 3, 5, 7, 1, 4),
    (0, 7, 4, 2, 1, 5, 3, 6),
    (0, 1, 6, 4, 3, 7, 5, 2),
)


@checked
def pcie(
    generation: Count,
    gpus: Count,
    switches: Count,
    cards: int,
    cpus: Count,
    sockets: str,
    *,
    host: Count | None = None,
) -> Iterator[Wire]:
    """Yield the wires of PCIe: switches share GPUs, cards and processors equally.

    host: the generation of the processors' slots, where it differs.
    """
    slot = hardware.link(f"PCIe {generation}.0 x16")
    up = hardware.link(f"PCIe {host or generation}.0 x16")
    for kind, count in (("GPU", gpus), ("NIC", cards)):
        for index in range(count):
            yield Wire(a=f"{kind} {index}", b=f"PCIe switch {index * switches // count}", link=slot)
    for switch in range(switches):
        yield Wire(a=f"PCIe switch {switch}", b=f"CPU {switch * cpus // switches}", link=up)
    if cpus > 1:
        yield Wire(a="CPU 0", b="CPU 1", link=hardware.link(sockets))


@checked
def nvswitch(gpus: Count, nvlink: str) -> Iterator[Wire]:
    """Yield the wires of one switch, to which every GPU is joined."""
    for gpu in range(gpus):
        yield Wire(a=f"GPU {gpu}", b="NVSwitch", link=hardware.link(nvlink))


@checked
def mesh(pairs: dict[tuple[int, int], Count], nvlink: str, links: Count) -> Iterator[Wire]:
    """Yield NVLinks that go directly from GPU to GPU; a GPU has `links` of them in all."""
    for (a, b), count in pairs.items():
        yield Wire(a=f"GPU {a}", b=f"GPU {b}", link=hardware.link(nvlink), width=count / links)


@checked
def cards(count: int, network: str, width: Count = 1) -> Iterator[Wire]:
    """Yield the wires from cards to the network; `width` cards stand in the place of each one."""
    for card in range(count):
        yield Wire(a=f"NIC {card}", b=NETWORK, link=hardware.link(network), width=width)


@checked
def rack(slot: str, network: str, gpus: Count = 72) -> tuple[Wire, ...]:
    """List the wires of an NVL72, or of some of its GPUs.

    All are on one switch; each processor has two GPUs and two cards.
    """
    chip_to_chip = hardware.link("NVLink-C2C")
    trays = []
    for each in range(gpus):
        cpu = f"CPU {each // 2}"
        trays.append(Wire(a=f"GPU {each}", b=cpu, link=chip_to_chip, width=0.5))
        trays.append(Wire(a=f"NIC {each}", b=cpu, link=hardware.link(slot)))
    return (*nvswitch(gpus, "NVLink 5"), *trays, *cards(gpus, network))


@checked
def torus(side: Count, link: str) -> Iterator[Wire]:
    """Yield the wires of a square torus: each chip to the next in its row and in its column."""
    for chip in range(side * side):
        row, column = divmod(chip, side)
        for beside in (side * row + (column + 1) % side, side * ((row + 1) % side) + column):
            yield Wire(a=f"GPU {chip}", b=f"GPU {beside}", link=hardware.link(link), width=1 / 4)


@checked
def torus_rings(side: Count) -> tuple[tuple[int, ...], ...]:
    """Find two cycles, along rows and down columns, that together use each wire of a torus once.

    Each comes in both directions. Row r begins where row r - 1 has ended, so the wire that it
    leaves out is one that the other cycle needs.
    """
    places = [(row, (column - row) % side) for row in range(side) for column in range(side)]
    rows = tuple(side * row + column for row, column in places)
    columns = tuple(side * column + row for row, column in places)
    return rows, rows[::-1], columns, columns[::-1]
