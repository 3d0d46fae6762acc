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

from shardlab import comm
from shardlab.files import given

from . import index, tensors
from .boxes import TensorBox, whole
from .folders import named
from .index import (
    OWN,
    TENSORS,
    Index,
    Place,
    SavedTensor,
    Slices,
    common,
    damaged,
    key,
)
from .together import from_all, together

WEIGHTS = "weights/"  # the kind of a parameter itself
Data = dict[str, Any]
Shapes = Mapping[str, Sequence[int]]
Stored = tuple[str, Place]  # a box in a checkpoint, by the name of its tensor
Copy = tuple[Tensor, Slices, Slices]  # into a tensor, its slices, the stored box's slices


def contents(path: str | Path) -> dict[str, SavedTensor]:
    """Describe the tensors that a checkpoint holds of the model: kind/parameter -> dtype, shape.

    Errors: ValueError with the file that is missing, too short, or not what it should be.
    """
    found = _open(Path(path))
    saved = {}
    for name, each in found.tensors.items():
        if not name.startswith(OWN):
            saved[name] = each
    return saved


def check(path: str | Path, saved: Mapping[str, SavedTensor], shapes: Shapes) -> None:
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
            what = f"{path} is of another model: {name} is {there} there, and {here} here; "
            raise ValueError(given.line(what + "build the model that was saved"))


def _shape_of(name: str, shapes: Shapes) -> tuple[int, ...] | str:
    return tuple(shapes[name]) if name in shapes else "missing"


def load(
    path: str | Path,
    group: comm.Group,
    boxes: Iterable[TensorBox],
) -> tuple[Data, Data | None]:
    """Fill this rank's boxes from a checkpoint; all ranks call it, after `check`.

    Returns the facts; and this rank's own data, or None if another number of ranks has saved.
    Errors, raised on all ranks: ValueError for what is damaged; do not use the boxes then.
    """
    facts: Data = {}
    own: Data = {}

    def act() -> bool:
        found = _open(Path(path))
        facts.update(found.facts)
        as_many = len(found.own) == group.size()
        every = [*boxes]
        if as_many:
            kind = f"{OWN}{group.rank()}/"
            mine = _allocate(found, kind)
            every += _boxes(mine, kind)
            own.update(found.own[group.rank()])
            own.update(mine)
        _fill(Path(path), found, every)
        return as_many

    as_many = together(group, act)[0]
    return facts, own if as_many else None


def weights(path: str | Path) -> dict[str, Tensor]:
    """Load the parameters of the plain model, whole, in a single process."""
    found = _open(Path(path))
    parameters = _allocate(found, WEIGHTS)
    _fill(Path(path), found, _boxes(parameters, WEIGHTS))
    return parameters


def _allocate(found: Index, kind: str) -> dict[str, Tensor]:
    """Allocate each tensor of this kind in a checkpoint: name without kind -> [...]."""
    made = {}
    for name, saved in found.tensors.items():
        if name.startswith(kind):
            empty = torch.empty(saved.shape, dtype=saved.dtype)
            made[name.removeprefix(kind)] = empty
    return made


def _boxes(named: Mapping[str, Tensor], kind: str) -> list[TensorBox]:
    return [whole(kind + name, tensor) for name, tensor in named.items()]


# ---- boxes from files --------------------------------------------------------------------------


def _open(path: Path) -> Index:
    """Read the index, and check that every file is there and long enough; ValueError otherwise."""
    found = index.read(path)
    needed: dict[str, int] = {}
    for name, place in _stored(found):
        file = TENSORS.format(place.rank, len(found.own))
        nbytes = found.tensors[name].dtype.itemsize * prod(place.sizes)
        needed[file] = needed.get(file, 0) + nbytes
    for file, nbytes in needed.items():
        if not (path / file).is_file():
            raise damaged(path, f"its file {file} is missing")
        has = (path / file).stat().st_size
        if has < nbytes:
            raise damaged(path, f"its file {file} has {has} bytes of at least {nbytes}")
    return found


def _stored(found: Index) -> Iterator[Stored]:
    """List all boxes in a checkpoint."""
    for name, saved in found.tensors.items():
        for place in saved.boxes:
            yield name, place


def _fill(path: Path, found: Index, boxes: Iterable[TensorBox]) -> None:
    """Copy to each box the numbers of the stored boxes that overlap it."""
    copies: dict[Stored, list[Copy]] = {}
    for box in boxes:
        saved = found.tensors.get(box.name)
        if saved is None or saved.shape != box.shape:
            has = "none" if saved is None else f"one of shape {saved.shape}"
            raise ValueError(
                f"{path} has {has} for {box.name} of shape {box.shape}; load what was saved"
            )
        sizes = tuple(box.tensor.shape)
        for place in saved.boxes:
            both = common(box.offsets, sizes, place.offsets, place.sizes)
            if both is not None:
                some = copies.setdefault((box.name, place), [])
                some.append((box.tensor, *both))
    for stored, numbers in _read(path, found, copies):
        for tensor, here, there in copies[stored]:
            tensor.detach()[here].copy_(numbers[there])


def _read(
    path: Path,
    found: Index,
    wanted: Iterable[Stored],
) -> Iterator[tuple[Stored, Tensor]]:
    """Read stored boxes one at a time, file by file. Errors: ValueError for one that is damaged."""
    by_file: dict[str, list[Stored]] = {}
    for name, place in wanted:
        file = TENSORS.format(place.rank, len(found.own))
        by_file.setdefault(file, []).append((name, place))
    for file, some in by_file.items():
        keys = [key(name, place.offsets) for name, place in some]
        try:
            read = tensors.read(path / file, keys)
            for (name, place), numbers in zip(some, read, strict=True):
                dtype = found.tensors[name].dtype
                alike = numbers.dtype == dtype and numbers.shape == place.sizes
                if not alike or tensors.checksum(numbers) != place.crc32:
                    raise ValueError(f"the checksum of {key(name, place.offsets)} is wrong")
                yield (name, place), numbers
        except ValueError as error:
            raise damaged(path, f"in its file {file}, {error}") from None


# ---- which checkpoint --------------------------------------------------------------------------


def latest(folder: str | Path, group: comm.Group | None = None) -> Path | None:
    """Return the last checkpoint in a folder that is whole, or None; warn of what it passes over.

    Every number of a checkpoint is read and checked. The ranks of a group share this work and get
    the same answer; without a group this process does all of it.
    """
    rank, size = 0, 1
    if group is not None:
        rank, size = group.rank(), group.size()
    there, *_ = from_all(named(Path(folder)), group)  # as the first rank sees it
    for path in reversed(there):
        wrong = problem(path, rank, size)
        said = [each for each in from_all(wrong, group) if each]
        if not said:
            return path
        if rank == 0:
            what = f"{said[0]}; checkpoint.latest passes over it, so delete it"
            warnings.warn(what, stacklevel=2)
    return None


def problem(path: Path, rank: int = 0, size: int = 1) -> str | None:
    """Read the share of one rank of a checkpoint, and say what is wrong; None if nothing is."""
    try:
        found = _open(path)
        mine = [(name, place) for name, place in _stored(found) if place.rank % size == rank]
        for _ in _read(path, found, mine):
            pass
    except (OSError, ValueError) as error:
        return str(error).rsplit("; ", 1)[0]  # without the way out
    return None


def is_sound(path: Path, rank: int) -> bool:
    """Read the file that one rank has written, and tell whether its index describes it."""
    try:
        found = index.read(path)
        boxes = [(name, place) for name, place in _stored(found) if place.rank == rank]
        for _ in _read(path, found, boxes):
            pass
    except (OSError, ValueError):
        return False
    return True
