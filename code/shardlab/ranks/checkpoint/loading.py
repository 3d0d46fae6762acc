"""Load a checkpoint in any layout, and tell whether it is whole.

    path = checkpoint.latest(folder, group)               # the last checkpoint that is whole
    facts, own = checkpoint.load(path, group, boxes)

A rank finds the saved boxes that overlap its own, reads one at a time, holds it to its checksum,
and copies the numbers that both boxes have. Nothing that it reads can run code.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import comm
from . import index, tensors
from .boxes import Box, whole
from .folders import named
from .index import OWN, TENSORS, Index, Place, Saved, Slices, common, damaged, key
from .together import from_all, together

WEIGHTS = "weights/"  # the kind of a parameter itself


def contents(path: str | Path) -> dict[str, Saved]:
    """Describe the tensors that a checkpoint holds of the model: kind/parameter -> dtype, shape.

    Errors: ValueError with the file that is missing, too short, or not what it should be.
    """
    saved = _open(Path(path)).tensors
    return {name: each for name, each in saved.items() if not name.startswith(OWN)}


def check(
    path: str | Path, saved: Mapping[str, Saved], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Check that a checkpoint holds weights of these names and shapes, and no others.

    Errors: ValueError with the first parameter that differs.
    """
    held = {}
    for name, each in saved.items():
        if name.startswith(WEIGHTS):
            held[name.removeprefix(WEIGHTS)] = each.shape
    for name in sorted({*held, *shapes}):
        there = _shape_of(name, held)
        here = _shape_of(name, shapes)
        if there != here:
            raise ValueError(
                f"{path} is of another model: {name} is {there} there, and {here} here; "
                "build the model that was saved"
            )


def _shape_of(name: str, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...] | str:
    return tuple(shapes[name]) if name in shapes else "missing"


def load(
    path: str | Path, group: comm.Group, boxes: Iterable[Box]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Fill this rank's boxes from a checkpoint; all ranks call it, after `check`.

    Returns the facts; and this rank's own data, or None if another number of ranks has saved.
    Errors, raised on all ranks: ValueError for what is damaged; do not use the boxes then.
    """
    loaded = []
    together(group, lambda: loaded.append(_load(Path(path), group, boxes)))
    return loaded[0]


def _load(
    path: Path, group: comm.Group, boxes: Iterable[Box]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    found = _open(path)
    kind = f"{OWN}{group.rank()}/"
    as_many = len(found.own) == group.size()
    extra = _allocate(found, kind) if as_many else {}
    _fill(path, found, [*boxes, *(whole(kind + name, x) for name, x in extra.items())])
    return found.facts, {**found.own[group.rank()], **extra} if as_many else None


def weights(path: str | Path) -> dict[str, Tensor]:
    """Load the parameters of the plain model, whole, in a single process."""
    found = _open(Path(path))
    parameters = _allocate(found, WEIGHTS)
    _fill(Path(path), found, [whole(WEIGHTS + name, x) for name, x in parameters.items()])
    return parameters


def _allocate(found: Index, kind: str) -> dict[str, Tensor]:
    """Make an empty tensor for each one of this kind in a checkpoint: name without kind -> [...]."""
    made = {}
    for name, saved in found.tensors.items():
        if name.startswith(kind):
            made[name.removeprefix(kind)] = torch.empty(saved.shape, dtype=saved.dtype)
    return made


# ---- boxes from files --------------------------------------------------------------------------


def _open(path: Path) -> Index:
    """Read the index, and check that every file is there and long enough; ValueError otherwise."""
    found = index.read(path)
    needed: dict[str, int] = {}
    for saved in found.tensors.values():
        for place in saved.boxes:
            file = TENSORS.format(place.rank, len(found.own))
            nbytes = saved.dtype.itemsize * prod(place.sizes)
            needed[file] = needed.get(file, 0) + nbytes
    for file, nbytes in needed.items():
        if not (path / file).is_file():
            raise damaged(path, f"its file {file} is missing")
        has = (path / file).stat().st_size
        if has < nbytes:
            raise damaged(path, f"its file {file} has {has} bytes of at least {nbytes}")
    return found


def _fill(path: Path, found: Index, boxes: Iterable[Box]) -> None:
    """Copy to each box the numbers of the saved boxes that overlap it."""
    copies: dict[tuple[str, Place], list[tuple[Tensor, Slices, Slices]]] = {}
    for box in boxes:
        saved = found.tensors.get(box.name)
        if saved is None or saved.shape != box.shape:
            has = "none" if saved is None else f"one of shape {saved.shape}"
            raise ValueError(
                f"{path} has {has} for {box.name} of shape {box.shape}; load what was saved"
            )
        for place in saved.boxes:
            both = common(box.offsets, tuple(box.tensor.shape), place.offsets, place.sizes)
            if both is not None:
                copies.setdefault((box.name, place), []).append((box.tensor, *both))
    for name, place, numbers in _read(path, found, copies):
        for tensor, here, there in copies[name, place]:
            tensor.detach()[here].copy_(numbers[there])


def _read(
    path: Path, found: Index, places: Iterable[tuple[str, Place]]
) -> Iterator[tuple[str, Place, Tensor]]:
    """Read saved boxes one at a time, file by file. Errors: ValueError for one that is damaged."""
    by_rank: dict[int, list[tuple[str, Place]]] = {}
    for name, place in places:
        by_rank.setdefault(place.rank, []).append((name, place))
    for rank, some in by_rank.items():
        file = TENSORS.format(rank, len(found.own))
        keys = [key(name, place.offsets) for name, place in some]
        try:
            for (name, place), numbers in zip(some, tensors.read(path / file, keys), strict=True):
                expected = (found.tensors[name].dtype, place.sizes, place.crc32)
                is_there = (numbers.dtype, tuple(numbers.shape), tensors.checksum(numbers))
                if is_there != expected:
                    raise ValueError(f"the checksum of {key(name, place.offsets)} is wrong")
                yield name, place, numbers
        except ValueError as error:
            raise damaged(path, f"in its file {file}, {error}") from None


# ---- which checkpoint --------------------------------------------------------------------------


def latest(folder: str | Path, group: comm.Group | None = None) -> Path | None:
    """Return the last checkpoint in a folder that is whole, or None; warn of what it passes over.

    Every number of a checkpoint is read and checked. The ranks of a group share this work and get
    the same answer; without a group this process does all of it.
    """
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    for path in reversed(from_all(named(Path(folder)), group)[0]):
        problems = [each for each in from_all(problem(path, rank, size), group) if each]
        if not problems:
            return path
        if rank == 0:
            said = problems[0].rpartition("; ")[0]
            warnings.warn(f"{said}; checkpoint.latest passes over it, so delete it", stacklevel=2)
    return None


def problem(path: Path, rank: int = 0, size: int = 1) -> str | None:
    """Read the share of one rank of a checkpoint, and say what is wrong; None if nothing is."""
    try:
        found = _open(path)
        every = [(name, place) for name, each in found.tensors.items() for place in each.boxes]
        for _ in _read(path, found, [each for each in every if each[1].rank % size == rank]):
            pass
    except (OSError, ValueError) as error:
        return str(error)
    return None
