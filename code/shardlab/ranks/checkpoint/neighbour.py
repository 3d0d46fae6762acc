"""Keep checkpoints in the memory of nodes, each with its files and those of the node before.

    memory = "/dev/shm/run-7"                              # a folder of this node, in its memory
    checkpoint.save(memory, 12, group, boxes, facts, nodes=2)
    path = neighbour.latest(memory, group, nodes=2) or checkpoint.latest(disk, group)

With two ranks a node, rank 1 sends its file to rank 3, which has its place on the next node:

    node 0: rank-0 rank-1 rank-2 rank-3      node 1: rank-2 rank-3 rank-0 rank-1

Such a copy outlives its processes, and dies with its node. Any one node may be lost; if two that
follow each other are lost, only what lies in the file system is left, so save there now and then.
Gemini (Wang et al. 2023, https://doi.org/10.1145/3600006.3613145) places copies so.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from shardlab import comm

from . import index
from .folders import NAME, delete, flush, named, step_in
from .index import TENSORS
from .loading import is_sound
from .together import from_all, together


class Parcel(NamedTuple):
    """A file that one rank sends to another."""

    file: str
    source: int
    to: int


class Identity(NamedTuple):
    """What tells checkpoints apart: two of the same step may come from different starts."""

    step: int
    ranks: int  # that have saved
    line: bytes  # the first of the index, with its checksum

    def files(self) -> set[str]:
        """Return the names of its files of tensors."""
        return {TENSORS.format(rank, self.ranks) for rank in range(self.ranks)}


def ranks_of_a_node(group: comm.Group, nodes: int) -> int:
    """Return how many ranks each node has. Errors: ValueError unless all have as many."""
    if nodes < 1 or group.size() % nodes:
        raise ValueError(f"{group.size()} ranks do not fill {nodes} nodes; start as many on each")
    return group.size() // nodes


def copy_on(folder: Path, group: comm.Group, nodes: int) -> None:
    """Send the file of every rank in a partial checkpoint to the next node, which writes it."""
    size = group.size()
    count = ranks_of_a_node(group, nodes)
    files = [TENSORS.format(rank, size) for rank in range(size)]
    carry([Parcel(x, r, (r + count) % size) for r, x in enumerate(files)], folder, group)


def carry(parcels: Sequence[Parcel], folder: Path, group: comm.Group) -> None:
    """Send files from the folders of their sources to the same folder of other nodes.

    Errors, raised on all ranks: OSError where a rank cannot read or write.
    """
    rank, device = group.rank(), comm.device(group)
    read = {}

    def load() -> dict[str, int]:
        for file in {each.file for each in parcels if each.source == rank}:
            numbers = bytearray((folder / file).read_bytes())
            read[file] = torch.frombuffer(numbers, dtype=torch.uint8).to(device)
        return {file: len(numbers) for file, numbers in read.items()}

    sizes = together(group, load)
    sends = [(read[each.file], each.to) for each in parcels if each.source == rank]
    mine = [each for each in parcels if each.to == rank]
    come = [torch.empty(sizes[x.source][x.file], dtype=torch.uint8, device=device) for x in mine]
    receives = [(x, each.source) for x, each in zip(come, mine, strict=True)]
    for wait in comm.start_messages(sends, receives, group):
        wait()

    def store() -> None:
        for each, numbers in zip(mine, come, strict=True):
            partial = folder / f".{each.file}.part"
            partial.write_bytes(numbers.cpu().numpy().data)
            flush(partial)
            partial.rename(folder / each.file)

    together(group, store)


def latest(folder: str | Path, group: comm.Group, *, nodes: int) -> Path | None:
    """Return the last checkpoint of which the nodes together have every file, or None.

    folder: this node's. All ranks call it, in any layout and on any number of nodes. Nodes get the
    files that they lack, or have damaged, from others, so each then has all of it, for
    `checkpoint.load`; real systems fetch only what a node's ranks need. Every number is read and
    checked. It warns of what it passes over, if a node can read its index. Errors, raised on all
    ranks: OSError where a node cannot read or write.
    """
    folder = Path(folder)
    count = ranks_of_a_node(group, nodes)
    node, place = divmod(group.rank(), count)
    held = together(group, lambda: _held(folder))[::count]  # by node
    for saved in sorted(set().union(*held), reverse=True):
        path = folder / NAME.format(saved.step)
        mine = _sound(path, saved, held[node].get(saved, set()), range(place, saved.ranks, count))
        by_rank = from_all(mine, group)
        sound = [set().union(*by_rank[n * count : (n + 1) * count]) for n in range(nodes)]
        lost = saved.files() - set().union(*sound)
        if not lost:
            _complete(path, [saved in each for each in held], sound, group)
            return path
        if group.rank() == 0:
            what = f"{path} is lost: no node has {min(lost)} undamaged"
            warnings.warn(f"{what}; neighbour.latest passes over it", stacklevel=2)
    return None


def _held(folder: Path) -> dict[Identity, set[str]]:
    """List the files of each checkpoint in a node's folder whose index can be read."""
    found = {}
    for path in named(folder):
        try:
            ranks = len(index.read(path).own)
        except ValueError:
            continue
        line = (path / index.FILE).read_bytes().partition(b"\n")[0]
        saved = Identity(step_in(path), ranks, line)
        files = {each.name for each in path.iterdir() if each.is_file() and each.stat().st_size}
        found[saved] = saved.files() & files
    return found


def _sound(path: Path, saved: Identity, held: set[str], ranks: range) -> set[str]:
    """Return the files of these ranks that a node has, each number as it was saved."""
    files = {rank: TENSORS.format(rank, saved.ranks) for rank in ranks}
    return {file for rank, file in files.items() if file in held and is_sound(path, rank)}


def _complete(
    path: Path, indexed: Sequence[bool], has: Sequence[set[str]], group: comm.Group
) -> None:
    """Give every node all files of a checkpoint, and the index last.

    indexed, has: of each node, whether it has the index, and its undamaged files.
    """
    count = group.size() // len(has)
    node, place = divmod(group.rank(), count)

    def begin() -> None:
        if place == 0 and not indexed[node]:
            if path.exists():  # of another start, or without its index
                delete(path)
            path.mkdir(parents=True)

    together(group, begin)
    parcels = []
    for at, file in enumerate(sorted(set().union(*has))):
        source = next(node for node, files in enumerate(has) if file in files)
        parcels += [
            Parcel(file, source * count + at % count, to * count + at % count)
            for to, files in enumerate(has)
            if file not in files
        ]
    carry(parcels, path, group)
    source = indexed.index(True)
    without = [to for to, there in enumerate(indexed) if not there]
    carry([Parcel(index.FILE, source * count, to * count) for to in without], path, group)
