"""Your own machine: make a node of what `nvidia-smi topo -m` prints."""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import combinations

from shardlab.files.arguments import checked

from . import hardware
from .network import NETWORK, SWITCH, Node, Wire
from .topology_text import BELOW_A_PROCESSOR, BELOW_A_SWITCH, Matrix, read


@checked
def node(
    text: str,
    *,
    chip: str,
    network: str = "",
    sockets: str = "",
    cards: Collection[str] = (),
    name: str = "your machine",
) -> Node:
    """Make the node that the matrix describes.

    The matrix names neither the `chip` nor the links of the `network` cards and the `sockets`. A
    card that is the nearest of no GPU is for management; where some GPUs have more cards beside
    them than others, one counts for each GPU; `cards` lists those to be used instead.
    Where NVLinks hide what lies below them and no card shows it, every GPU gets a PCIe switch of
    its own. Warns of cards that are left out and of lost NVLinks. Errors: ValueError for a text
    without a matrix or with that of `nvidia-smi topo -mp`, names unknown to `hardware`, a missing
    link, or more NVLinks than the chip's.
    """
    matrix = read(text)
    facts = hardware.chip(chip)
    used = _cards(matrix, cards)
    named = {gpu: f"GPU {number}" for number, gpu in enumerate(matrix.gpus)}
    named |= {card: f"NIC {number}" for number, card in enumerate(used)}
    if used and not network:
        raise ValueError(
            f"the machine has {len(used)} network cards; name their link, "
            f"as in network='InfiniBand NDR'; known: {_known('network')}"
        )
    wires = [
        *_nvlinks(matrix, named, facts),
        *_tree(matrix, named, hardware.host_link(facts), sockets),
        *(Wire(a=named[card], b=NETWORK, link=hardware.link(network)) for card in used),
    ]
    return Node(name=name, chip=facts, wires=tuple(wires), source="nvidia-smi topo -m")


def _cards(matrix: Matrix, wanted: Collection[str]) -> list[str]:
    """Return the network cards that are used: the wanted ones, else the nearest ones."""
    there = matrix.cards
    if unknown := [card for card in wanted if card not in there]:
        raise ValueError(f"no network card {unknown[0]!r} in the matrix; it has {there}")
    if wanted:
        return [card for card in there if card in wanted]
    near = matrix.nearest_cards
    nearest = {card for cards in near.values() for card in cards}
    used = nearest if _dealt_evenly(near) else _one_for_each(near)
    reasons = {
        "another card is nearer to every GPU (they are for management, it seems)": nearest,
        "others are as near, and one counts for each GPU": used | (set(there) - nearest),
    }
    for reason, kept in reasons.items():
        if left := [card for card in there if card not in kept]:
            warnings.warn(
                f"left out, because {reason}: {', '.join(left)}; "
                f"choose yourself with cards={there}",
                stacklevel=4,
            )
    return [card for card in there if card in used]


def _dealt_evenly(near: Mapping[str, Collection[str]]) -> bool:
    """Whether GPUs have at most a card each, or all of them the same number."""
    shares = set()
    for group in _groups(near, lambda a, b: not set(near[a]).isdisjoint(near[b])):
        shares.add(len({card for gpu in group for card in near[gpu]}) / len(group))
    return max(shares) <= 1 or (len(shares) == 1 and shares.pop().is_integer())


def _one_for_each(near: Mapping[str, Collection[str]]) -> set[str]:
    """Choose a card for each GPU, the first of its nearest that no GPU before it has."""
    used: set[str] = set()
    for cards in near.values():
        used.update([card for card in cards if card not in used][:1])
    return used


def _known(kind: str) -> str:
    return ", ".join(link.name for link in hardware.LINKS.values() if link.kind == kind)


def _nvlinks(matrix: Matrix, named: Mapping[str, str], chip: hardware.Chip) -> Iterator[Wire]:
    """Yield NVLinks: to a switch if some GPU shows more than its chip has, else direct ones."""
    found = {pair: cell for pair, cell in matrix.cells.items() if re.match(r"NV0*[1-9]", cell)}
    counts = {pair: int(cell.removeprefix("NV")) for pair, cell in found.items()}
    counted = (link for link in hardware.LINKS.values() if link.count)
    link = next((link for link in counted if link.bandwidth == chip.nvlink), None)
    total = link.count or 0 if link else 0
    for (a, b), count in counts.items():
        if count > total:
            raise ValueError(
                f"{a} and {b} share {count} NVLinks, but {chip.name} has {total}; name the chip"
            )
    if link is None:
        return
    bridged = "bridge" in link.name or "PCIe" in chip.name
    _refuse_a_table_without(matrix, chip, bridged)
    switches = 0
    for group in _groups(matrix.gpus, lambda a, b: (a, b) in counts):
        shown = {gpu: [counts.get((gpu, other), 0) for other in group] for gpu in group}
        if len(group) == 1 < len(matrix.gpus) and not bridged:
            warnings.warn(f"{named[group[0]]} has lost NVLink", stacklevel=4)
        elif max(map(sum, shown.values())) > total:
            switch = f"{SWITCH} {switches}" if switches else SWITCH
            switches += 1
            for gpu, by_peer in shown.items():
                yield Wire(a=named[gpu], b=switch, link=link, width=max(by_peer) / total)
        else:
            for a, b in combinations(group, 2):
                if (a, b) in counts:
                    yield Wire(a=named[a], b=named[b], link=link, width=counts[a, b] / total)


def _refuse_a_table_without(matrix: Matrix, chip: hardware.Chip, bridged: bool) -> None:
    """Refuse a table in which no cell, not even NV0, is about NVLinks that the chip must have."""
    shown = any(cell.startswith("NV") for cell in matrix.cells.values())
    if len(matrix.gpus) > 1 and not shown and not bridged:
        raise ValueError(
            f"no two GPUs share NVLinks, which the {chip.name} has; `nvidia-smi topo -mp` leaves "
            "them out: give what `nvidia-smi topo -m` prints. If yours have none, describe the "
            "machine in a file without nvlink, as `python -m shardlab.plan --help` shows"
        )


def _tree(
    matrix: Matrix, named: Mapping[str, str], slot: hardware.Link, sockets: str
) -> Iterator[Wire]:
    """Yield the wires of PCIe: devices below switches, switches below processors in a row."""
    cells, told = matrix.cells, matrix.processor

    def below_a_processor(a: str, b: str) -> bool:
        return cells[a, b] in BELOW_A_PROCESSOR or (a in told and told[a] == told.get(b))

    processors = _groups(named, below_a_processor)
    for number, group in enumerate(_groups(named, lambda a, b: cells[a, b] in BELOW_A_SWITCH)):
        processor = next(index for index, each in enumerate(processors) if group[0] in each)
        yield from (Wire(a=named[device], b=f"PCIe switch {number}", link=slot) for device in group)
        yield Wire(a=f"PCIe switch {number}", b=f"CPU {processor}", link=slot)
    if len(processors) > 1 and not sockets:
        raise ValueError(
            f"{len(processors)} processors; name the link between them, "
            f"as in sockets='sockets (AMD)'; known: {_known('host')}"
        )
    for number in range(1, len(processors)):
        yield Wire(a=f"CPU {number - 1}", b=f"CPU {number}", link=hardware.link(sockets))


def _groups(devices: Iterable[str], joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Group the devices that are joined, directly or through others."""
    groups: list[list[str]] = []
    for device in devices:
        near = [group for group in groups if any(joined(device, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), device])
    return groups
