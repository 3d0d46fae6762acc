"""Save a checkpoint that any layout can load: it holds every number of the model once.

    checkpoint.save(folder, 12, group, boxes, facts)      # folder/step-00000012, or nothing at all

A checkpoint is a folder with the index and a file of tensors from each rank. A box that several
ranks hold is written by one of them, chosen so that all write about as much.

At scale one uses torch.distributed.checkpoint, which also writes in the background and without a
file system (https://docs.pytorch.org/docs/stable/distributed.checkpoint.html). It pickles its
metadata, so that loading can run code.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import comm
from . import index, tensors
from .boxes import Box, whole
from .folders import NAME, delete, delete_partial, flush, named
from .index import OWN, TENSORS, Index, Piece, collect, key
from .loading import problem
from .together import from_all, together


def save(
    folder: str | Path,
    step: int,
    group: comm.Group,
    boxes: Iterable[Box],
    facts: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    *,
    keep: int = 2,
) -> Path:
    """Save the boxes of all ranks in folder/step-..., then delete all but the last `keep`.

    All ranks call it. Boxes that several ranks have must be equal.

    facts  plain data, the same on all ranks; JSON turns tuples into lists, and keys into text
    own    tensors and plain data of this rank, such as its random states

    A kill at any moment leaves the earlier checkpoints: the new one gets its name when it is
    complete. It replaces a damaged one of the same step. Errors, raised on all ranks, which leave
    nothing behind: ValueError for a step that exists already, for data that JSON cannot hold, and
    where the boxes of all ranks do not fill every tensor; OSError where a rank cannot write.
    """
    path = Path(folder) / NAME.format(step)
    part = path.with_name(f".{path.name}.part")
    rank = group.rank()
    own = own or {}
    plain = {name: x for name, x in own.items() if not isinstance(x, Tensor)}
    extra = [whole(f"{OWN}{rank}/{name}", x) for name, x in own.items() if name not in plain]
    held = {_piece(box): box.tensor for box in [*boxes, *extra]}
    facts = {**facts, "step": step}

    def write() -> tuple[dict[Piece, int], dict[str, Any]]:
        index.check_plain(facts, plain)
        file = part / TENSORS.format(rank, group.size())
        return _write(file, {x: held[x] for x in held if writers[x] == rank}), plain

    def finish() -> None:
        boxes = collect([checksums for checksums, _ in written])
        index.write(part, Index(facts=facts, tensors=boxes, own=[plain for _, plain in written]))
        _give_name(part, path)

    writers = share(from_all(list(held), group))
    try:
        _first(group, lambda: _begin(path, part))
        written = together(group, write)
        _first(group, finish)
    except (OSError, ValueError) as error:
        _first(group, lambda: shutil.rmtree(part, ignore_errors=True))
        if isinstance(error, ValueError):
            raise
        said = f"{path} was not saved: {error.strerror}; make room, or save into another folder"
        raise OSError(error.errno, said) from None
    _first(group, lambda: _delete_old(path, keep))
    return path


def share(held: Sequence[Sequence[Piece]]) -> dict[Piece, int]:
    """Choose the rank that writes each box: of those that hold it, one that has least to write.

    held: the boxes of each rank. Returns box -> rank.
    """
    holders: dict[Piece, list[int]] = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            holders.setdefault(piece, []).append(rank)
    nbytes = {piece: piece.dtype.itemsize * prod(piece.sizes) for piece in holders}
    to_write = [0] * len(held)
    writers = {}
    # Boxes that leave no choice come first, then large ones.
    for piece in sorted(holders, key=lambda piece: (len(holders[piece]), -nbytes[piece])):
        writers[piece] = min(holders[piece], key=to_write.__getitem__)
        to_write[writers[piece]] += nbytes[piece]
    return writers


def _piece(box: Box) -> Piece:
    return Piece(box.name, box.tensor.dtype, box.shape, box.offsets, tuple(box.tensor.shape))


def _first(group: comm.Group, act: Callable[[], None]) -> None:
    """Let the first rank act, and the others wait for it."""
    together(group, act if group.rank() == 0 else lambda: None)


def _begin(path: Path, part: Path) -> None:
    if path.exists() and problem(path) is None:
        raise ValueError(
            f"{path} is there already; go on from it (checkpoint.latest), "
            "or save into another folder"
        )
    delete_partial(path.parent)
    part.mkdir(parents=True)


def _write(file: Path, boxes: Mapping[Piece, Tensor]) -> dict[Piece, int]:
    """Write a rank's boxes, and return their checksums."""
    keys = {piece: key(piece.name, piece.offsets) for piece in boxes}
    checksums = tensors.write(file, {keys[piece]: boxes[piece] for piece in boxes})
    return {piece: checksums[keys[piece]] for piece in boxes}


def _give_name(part: Path, path: Path) -> None:
    flush(part)
    if path.exists():  # it is damaged, else `_begin` had refused
        delete(path)
    part.rename(path)
    flush(path.parent)


def _delete_old(path: Path, keep: int) -> None:
    """Keep this checkpoint and those before it, `keep` in all; an empty folder does not count."""
    there = [each for each in named(path.parent) if (each / index.FILE).is_file()]
    for old in [each for each in there if each <= path][:-keep]:
        delete(old)
