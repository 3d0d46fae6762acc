"""Your own machine: read the output of `nvidia-smi topo -m` and make a node of it.

A legend below every such matrix explains its letters: NV# is # NVLinks; PIX and PXB stay below the
PCIe switches of one processor; PHB and NODE pass through a processor; SYS passes from one processor
to another. Why that matters:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardlab.arguments import checked

from . import hardware
from .network import NETWORK, SWITCH, Node, Wire

BELOW_A_SWITCH, BELOW_A_PROCESSOR = ("PIX", "PXB"), ("PIX", "PXB", "PHB", "NODE")


@dataclass(frozen=True)
@checked
class Matrix:
    """The printed matrix."""

    cells: dict[tuple[str, str], str]  # (device, device) -> the letters
    numa: dict[str, int]  # GPU -> its NUMA node, where the output gives it

    @property
    def devices(self) -> list[str]:
        """GPUs and network cards, in order."""
        return list(dict.fromkeys(row for row, _ in self.cells))


@checked
def read(text: str) -> Matrix:
    """Read the cells between GPUs and network cards.

    Errors: ValueError for a text without such a matrix.
    """
    lines = [line.split() for line in text.splitlines()]
    head = next((words for words in lines if words[:1] == ["GPU0"]), None)
    if head is None:
        raise ValueError(
            "no line begins with GPU0; paste all that `nvidia-smi topo -m` prints, "
            "its first line included"
        )
    columns = [word for word in head if re.fullmatch(r"(GPU|NIC)\d+|mlx\d_\d+", word)]
    rows = [
        (words[0], words[1:])
        for words in lines
        if words[:1] and words[0] in columns and words is not head
    ]
    cells = {
        (row, column): cell
        for row, found in rows
        for column, cell in zip(columns, found, strict=False)
    }
    # After the cells and the processor's cores.
    told = {row: found[len(columns) + 1 :] for row, found in rows}
    return Matrix(
        cells, {row: int(rest[0]) for row, rest in told.items() if rest and rest[0].isdigit()}
    )


@checked
def node(
    text: str, *, chip: str, network: str = "", sockets: str = "", name: str = "your machine"
) -> Node:
    """Make the node that the matrix describes.

    The matrix names neither the `chip` nor the links of the `network` cards and the `sockets`.
    Where NVLinks hide what lies below them and no card shows it, every GPU gets a PCIe switch of
    its own. Errors: ValueError for a text without a matrix, names unknown to `hardware`, or a
    missing link.
    """
    matrix = read(text)
    named: dict[str, str] = {}
    for old in matrix.devices:
        kind = "GPU" if old.startswith("GPU") else "NIC"
        named[old] = f"{kind} {sum(each.startswith(kind) for each in named.values())}"
    cards = [old for old, new in named.items() if new.startswith("NIC")]
    if cards and not network:
        raise ValueError(
            f"the machine has {len(cards)} network cards; name their link, "
            "as in network='InfiniBand NDR'"
        )
    facts = hardware.chip(chip)
    wires = [
        *_nvlinks(matrix, named, facts.nvlink),
        *_tree(matrix, named, hardware.host_link(facts), sockets),
        *(Wire(a=named[card], b=NETWORK, link=hardware.link(network)) for card in cards),
    ]
    return Node(name=name, chip=facts, wires=tuple(wires), source="nvidia-smi topo -m")


def _nvlinks(matrix: Matrix, named: Mapping[str, str], rate: float) -> Iterator[Wire]:
    """Yield NVLinks to a switch if every GPU reaches every other with all its links, else direct.

    rate: NVLink bytes/s of the chip.
    """
    gpus = [device for device in matrix.devices if device.startswith("GPU")]
    found = {pair: re.fullmatch(r"NV([1-9]\d*)", cell) for pair, cell in matrix.cells.items()}
    counts = {pair: int(number[1]) for pair, number in found.items() if number}
    if not counts:
        return
    link = next(
        each for each in hardware.LINKS.values() if each.kind == "NVLink" and each.bandwidth == rate
    )
    all_pairs = len(counts) == len(gpus) * (len(gpus) - 1)
    if len(gpus) > 2 and all_pairs and len(set(counts.values())) == 1:  # noqa: PLR2004
        yield from (Wire(a=named[gpu], b=SWITCH, link=link) for gpu in gpus)
        return
    total = max(sum(count for (row, _), count in counts.items() if row == gpu) for gpu in gpus)
    for (a, b), count in counts.items():
        if gpus.index(a) < gpus.index(b):
            yield Wire(a=named[a], b=named[b], link=link, width=count / total)


def _tree(
    matrix: Matrix, named: Mapping[str, str], slot: hardware.Link, sockets: str
) -> Iterator[Wire]:
    """Yield the wires of PCIe: devices below switches, switches below processors in a row."""
    processors = _groups(matrix, BELOW_A_PROCESSOR, matrix.numa)
    for number, group in enumerate(_groups(matrix, BELOW_A_SWITCH, {})):
        processor = next(index for index, each in enumerate(processors) if group[0] in each)
        yield from (Wire(a=named[device], b=f"PCIe switch {number}", link=slot) for device in group)
        yield Wire(a=f"PCIe switch {number}", b=f"CPU {processor}", link=slot)
    if len(processors) > 1 and not sockets:
        raise ValueError(
            f"{len(processors)} processors; name the link between them, "
            "as in sockets='sockets (AMD)'"
        )
    for number in range(1, len(processors)):
        yield Wire(a=f"CPU {number - 1}", b=f"CPU {number}", link=hardware.link(sockets))


def _groups(matrix: Matrix, cells: tuple[str, ...], numa: Mapping[str, int]) -> list[list[str]]:
    """Group devices that `cells` or the same NUMA node join, directly or through others."""

    def joined(a: str, b: str) -> bool:
        return matrix.cells.get((a, b)) in cells or (a in numa and numa[a] == numa.get(b))

    groups: list[list[str]] = []
    for device in matrix.devices:
        near = [group for group in groups if any(joined(device, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), device])
    return groups
