"""Save a checkpoint that any layout can load: it holds every number of the model once.

    checkpoint.save(folder, 12, group, boxes, facts)      # folder/step-00000012, or nothing at all

A checkpoint is a folder with the index and a file of tensors from each rank. A box that several
ranks hold is written by one of them, chosen so that all write about as much.

`background` writes while training goes on. At scale one uses torch.distributed.checkpoint, which
also writes to object stores (https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). It
pickles its metadata, so loading can run code.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import index as index_of
from pathlib import Path
from typing import Any

from torch import Tensor

from shardlab import comm

from . import index, tensors
from .boxes import TensorBox, whole
from .folders import MAX_STEP, NAME, delete, delete_partial, flush, named, step_in
from .index import OWN, TENSORS, Index, Piece, collect, key
from .loading import problem
from .neighbour import copy_on, ranks_of_a_node
from .together import from_all, together

Checksums = dict[Piece, int]


@dataclass(frozen=True, kw_only=True)
class ToWrite:
    """A rank's share of a checkpoint."""

    path: Path  # of the checkpoint
    keep: int
    nodes: int
    facts: dict[str, Any]
    plain: dict[str, Any]  # of this rank's own data what is no tensor
    held: dict[Piece, Tensor]


def save(
    folder: str | Path,
    step: int,
    group: comm.Group,
    boxes: Iterable[TensorBox],
    facts: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    *,
    keep: int = 2,
    nodes: int = 1,
) -> Path:
    """Save the boxes of all ranks in folder/step-..., then delete all but the last `keep`.

    All ranks call it. Boxes that several ranks have must be equal.

    facts  plain data, the same on all ranks; JSON turns tuples into lists, and keys into text
    own    tensors and plain data of this rank, such as its random states
    nodes  1: one folder, which all ranks see; more: each node has a folder of its own, which
           also gets the files of the node before (see `neighbour`), and replaces a step that it
           has: `neighbour.latest` has passed over it

    A kill at any moment leaves the earlier checkpoints: the new one gets its name when it is
    complete. It replaces a damaged one of the same step. What cannot be deleted stays, with a
    warning. Errors, raised on all ranks, which leave nothing behind: ValueError for a step that
    exists already or is no whole number, `keep` below 1, `nodes` with unequal ranks, data that JSON
    cannot hold, and where the boxes of all ranks do not fill every tensor; OSError where a rank
    cannot write.
    """
    return write(prepare(folder, step, group, boxes, facts, own, keep=keep, nodes=nodes), group)


def prepare(
    folder: str | Path,
    step: int,
    group: comm.Group,
    boxes: Iterable[TensorBox],
    facts: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    *,
    keep: int = 2,
    nodes: int = 1,
) -> ToWrite:
    """Let the ranks agree on who writes what, and return this rank's share; as in `save`."""
    step = _whole("step", step, 0)
    keep = _whole("keep", keep, 1)
    ranks_of_a_node(group, nodes)
    rank = group.rank()
    plain = {}
    held = {piece_of(box): box.tensor for box in boxes}
    for name, value in (own or {}).items():
        if isinstance(value, Tensor):
            box = whole(f"{OWN}{rank}/{name}", value)
            held[piece_of(box)] = value
        else:
            plain[name] = value
    writers = share(from_all(list(held), group))
    mine = {piece: held[piece] for piece in held if writers[piece] == rank}
    path = Path(folder) / NAME.format(step)
    facts = {**facts, "step": step}
    return ToWrite(path=path, keep=keep, nodes=nodes, facts=facts, plain=plain, held=mine)


def write(share: ToWrite, group: comm.Group) -> Path:
    """Write the shares of all ranks, and give the checkpoint its name; as in `save`."""
    path = share.path
    part = path.with_name(f".{path.name}.part")

    def write_mine() -> tuple[Checksums, dict[str, Any]]:
        index.check_plain(share.facts, share.plain)
        file = part / TENSORS.format(group.rank(), group.size())
        return _write(file, share.held), share.plain

    def finish() -> None:
        checksums, own = zip(*written, strict=True)
        boxes = collect(checksums)
        index.write(part, Index(facts=share.facts, tensors=boxes, own=own))

    def first(act: Callable[[], None]) -> None:
        """Let the first rank of each folder act, and the others wait for it."""
        is_first = group.rank() % ranks_of_a_node(group, share.nodes) == 0
        together(group, act if is_first else lambda: None)

    begun = [part]
    try:
        first(lambda: _begin(path, part, share.nodes))
        written = together(group, write_mine)
        if share.nodes > 1:
            copy_on(part, group, share.nodes)
        first(finish)
        begun.append(path)  # from here on some node may have it
        first(lambda: _give_name(part, path))
    except (OSError, ValueError) as error:
        first(lambda: _drop(begun))
        if isinstance(error, ValueError):
            raise
        said = f"{path} was not saved: {error.strerror}"
        hint = "make room, or save into another folder"
        raise OSError(error.errno, f"{said}; {hint}") from None
    first(lambda: _delete_old(path, share.keep))
    return path


def share(held: Sequence[Sequence[Piece]]) -> dict[Piece, int]:
    """Choose the rank that writes each box: of those that hold it, one that has least to write.

    held: the boxes of each rank. Returns box -> rank.
    """
    holders: dict[Piece, list[int]] = {}
    nbytes = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            nbytes[piece] = piece.dtype.itemsize * prod(piece.sizes)
            holders.setdefault(piece, []).append(rank)
    to_write = [0] * len(held)
    writers = {}
    # Boxes that leave no choice come first, then large ones.
    for piece in sorted(holders, key=lambda piece: (len(holders[piece]), -nbytes[piece])):
        writers[piece] = min(holders[piece], key=to_write.__getitem__)
        to_write[writers[piece]] += nbytes[piece]
    return writers


def _whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of any kind, such as numpy's; ValueError for another value."""
    try:
        number = index_of(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= MAX_STEP:
        raise ValueError(f"{name} must be a whole number from {least} to {MAX_STEP}")
    return number


def piece_of(box: TensorBox) -> Piece:
    """Describe a box to other ranks."""
    return Piece(
        name=box.name,
        dtype=box.tensor.dtype,
        shape=box.shape,
        offsets=box.offsets,
        sizes=tuple(box.tensor.shape),
    )


def _begin(path: Path, part: Path, nodes: int) -> None:
    if nodes == 1 and path.exists() and problem(path) is None:
        raise ValueError(
            f"{path} is there already; go on from it (checkpoint.latest), "
            "or save into another folder"
        )
    if path.is_file():
        raise ValueError(f"{path} is a file, and no checkpoint; move it away")
    delete_partial(path.parent)
    part.mkdir(parents=True)


def _write(file: Path, boxes: Mapping[Piece, Tensor]) -> Checksums:
    """Write a rank's boxes, and return their checksums."""
    by_key, pieces = {}, {}
    for piece, tensor in boxes.items():
        name = key(piece.name, piece.offsets)
        by_key[name] = tensor
        pieces[name] = piece
    checksums = tensors.write(file, by_key)
    return {pieces[name]: crc32 for name, crc32 in checksums.items()}


def _drop(begun: Sequence[Path]) -> None:
    """Delete a partial checkpoint, and one that has its name where another node's has not."""
    part, *complete = begun
    shutil.rmtree(part, ignore_errors=True)
    for path in filter(os.path.lexists, complete):
        delete(path)


def _give_name(part: Path, path: Path) -> None:
    flush(part)
    if os.path.lexists(path):  # it is damaged, else `_begin` had refused
        delete(path)
    part.rename(path)
    flush(path.parent)


def _delete_old(path: Path, keep: int) -> None:
    """Keep this checkpoint and those before it, `keep` in all; an empty folder does not count."""
    there = []
    for each in named(path.parent):
        if step_in(each) <= step_in(path) and (each / index.FILE).is_file():
            there.append(each)
    for old in there[:-keep]:
        delete(old)
