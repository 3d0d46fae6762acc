"""The index of a checkpoint: the boxes of every tensor, the file that holds each, its checksum.

It is the file checkpoint.json. Here one box is all of the only tensor:

    {"crc32": 3432918353, "checkpoint":
    {"facts": {"step": 12}, "own": [{}], "tensors": {
    "weights/head.weight": {"dtype": "F32", "shape": [13, 8], "boxes": [
    {"rank": 0, "offsets": [0, 0], "sizes": [13, 8], "crc32": 1273018447}]}}}}

Each box has a checksum, and not each file, because a rank reads and checks only the boxes it needs.
Reading JSON runs no code. Anybody may have written the file, so every field's type is checked.
"""

import json
import reprlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from shardlab.files import given

from .folders import NAME, flush, step_in
from .tensors import DTYPES, NAMES

FILE = "checkpoint.json"
TENSORS = "rank-{}-of-{}.safetensors"  # the file of a rank
MOST_NUMBERS = 1 << 59  # in a tensor: at 8 bytes each, more than torch can address
OWN = "own/"  # the kind of tensors that belong to one rank, as in own/0/torch
T = TypeVar("T")
Numbers = tuple[int, ...]
Slices = tuple[slice, ...]


class Piece(NamedTuple):
    """What ranks tell each other of a box."""

    name: str  # of the tensor
    dtype: torch.dtype
    shape: Numbers  # of the whole
    offsets: Numbers
    sizes: Numbers


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a box: in the whole tensor, and in the files."""

    rank: int  # that has written it
    offsets: Numbers
    sizes: Numbers
    crc32: int


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """A tensor in a checkpoint, with the places of its boxes."""

    dtype: torch.dtype
    shape: Numbers
    boxes: list[Place]


@dataclass(frozen=True, kw_only=True)
class Index:
    """All that is in a checkpoint."""

    facts: dict[str, Any]
    tensors: dict[str, SavedTensor]
    own: Sequence[dict[str, Any]]  # plain data by the rank that has saved


def key(name: str, offsets: Sequence[int]) -> str:
    """Return the name of a box in the file of its rank."""
    return f"{name} at {[*offsets]}"


def collect(written: Iterable[Mapping[Piece, int]]) -> dict[str, SavedTensor]:
    """List by tensor the boxes that ranks have written.

    written: of each rank the boxes, with their checksums. Errors: ValueError unless the boxes of
    each tensor fill it, with no number twice.
    """
    tensors: dict[str, SavedTensor] = {}
    for rank, checksums in enumerate(written):
        for (name, dtype, shape, offsets, sizes), crc32 in checksums.items():
            saved = tensors.setdefault(name, SavedTensor(dtype=dtype, shape=shape, boxes=[]))
            if (saved.dtype, saved.shape) != (dtype, shape):
                raise ValueError(
                    f"ranks disagree on {name}: {saved.dtype} of shape {saved.shape} and "
                    f"{dtype} of shape {shape}; build the same model on every rank"
                )
            saved.boxes.append(Place(rank=rank, offsets=offsets, sizes=sizes, crc32=crc32))
    for name, saved in tensors.items():
        check_filled(name, saved)
    return tensors


def check_filled(name: str, saved: SavedTensor) -> None:
    """Check that boxes hold every number of a tensor once. Errors: ValueError otherwise."""
    boxes = sorted(saved.boxes, key=lambda box: box.offsets)
    for index, box in enumerate(boxes):
        alike = len(box.offsets) == len(box.sizes) == len(saved.shape)
        ends = tuple(map(int.__add__, box.offsets, box.sizes))
        if not alike or any(map(int.__gt__, ends, saved.shape)):
            raise ValueError(
                f"{name} has shape {saved.shape}, but a box of it has offsets {box.offsets} and "
                f"sizes {box.sizes}; save boxes that lie inside"
            )
        for other in boxes[index + 1 :]:
            if ends and other.offsets[0] >= ends[0]:
                break  # so do all that follow
            if common(box.offsets, box.sizes, other.offsets, other.sizes):
                raise ValueError(
                    f"two boxes of {name}, at {box.offsets} and {other.offsets}, share numbers; "
                    "save boxes that are equal or disjoint"
                )
    numbers = sum(prod(box.sizes) for box in boxes)
    if numbers != prod(saved.shape):
        raise ValueError(
            f"boxes hold {numbers} of the {prod(saved.shape)} numbers of {name}; "
            "save those of all ranks"
        )


def common(
    offsets: Numbers, sizes: Numbers, others: Numbers, other_sizes: Numbers
) -> tuple[Slices, Slices] | None:
    """Find the numbers that two boxes share: their slices in the first box, and in the second.

    Returns None if there are none.
    """
    first, second = [], []
    for a, n, b, m in zip(offsets, sizes, others, other_sizes, strict=True):
        begin, end = max(a, b), min(a + n, b + m)
        if begin >= end:
            return None
        first.append(slice(begin - a, end - a))
        second.append(slice(begin - b, end - b))
    return tuple(first), tuple(second)


# ---- as a file ---------------------------------------------------------------------------------


def check_plain(*values: Any) -> None:
    """Check that JSON can hold these values. Errors: ValueError otherwise."""
    try:
        json.dumps(values)
    except (TypeError, RecursionError) as error:
        raise ValueError(
            f"a checkpoint holds facts as JSON ({error}); use text, numbers of Python, lists, dicts"
        ) from None


def write(folder: Path, index: Index) -> None:
    """Write the index of a checkpoint to the disk."""
    body = json.dumps(asdict(index), default=NAMES.__getitem__).encode()
    (folder / FILE).write_bytes(_sealed(body))
    flush(folder / FILE)


def _sealed(body: bytes) -> bytes:
    """Put the checksum before the text."""
    return b'{"crc32": %d, "checkpoint":\n%s}\n' % (zlib.crc32(body), body)


def read(path: Path) -> Index:
    """Read the index of a checkpoint. Errors: ValueError with what is wrong with the file."""
    if not (path / FILE).is_file():
        hint = "use what checkpoint.latest(...) returns"
        raise ValueError(f"{path} is no checkpoint: it has no file {FILE}; {hint}")
    whole = (path / FILE).read_bytes()
    body = whole.partition(b"\n")[2].removesuffix(b"}\n")
    if _sealed(body) != whole:
        raise damaged(path, f"{FILE} does not have its checksum")
    try:
        found = _index(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{FILE}: {error}") from None
    step = found.facts["step"]
    if step_in(path) not in (-1, step):
        raise ValueError(f"{path} holds step {step}; rename it {NAME.format(step)}")
    return found


def damaged(path: str | Path, what: str) -> ValueError:
    """Make the error of a checkpoint in which something is wrong."""
    return ValueError(given.line(f"{path} is damaged: {what}; use an earlier checkpoint"))


def _index(row: Any) -> Index:
    facts, own = field(row, "facts", dict), field(row, "own", list)
    if field(facts, "step", int) < 0:
        raise ValueError(f"step is {facts['step']} and not at least 0")
    if not all(isinstance(each, dict) for each in own):
        raise ValueError(f"own is {reprlib.repr(own)} and no list of dict")
    found = Index(facts=facts, tensors={}, own=own)
    for name, each in field(row, "tensors", dict).items():
        dtype = field(each, "dtype", str)
        if dtype not in DTYPES:
            raise ValueError(f"the dtype of {name} is {reprlib.repr(dtype)}")
        boxes = [_place(box, len(own)) for box in field(each, "boxes", list)]
        shape = numbers(each, "shape")
        if prod(max(1, length) for length in shape) > MOST_NUMBERS:
            raise ValueError(f"the shape of {name} is {shape}, which torch cannot hold")
        saved = SavedTensor(dtype=DTYPES[dtype], shape=shape, boxes=boxes)
        check_filled(name, saved)
        found.tensors[name] = saved
    return found


def _place(row: Any, ranks: int) -> Place:
    rank, crc32 = field(row, "rank", int), field(row, "crc32", int)
    if not 0 <= rank < ranks:
        raise ValueError(f"a box was written by rank {rank} of {ranks}")
    offsets, sizes = numbers(row, "offsets"), numbers(row, "sizes")
    return Place(rank=rank, offsets=offsets, sizes=sizes, crc32=crc32)


def numbers(row: Any, name: str) -> Numbers:
    numbers = field(row, name, list)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{name} is {reprlib.repr(numbers)}, which are no whole numbers from 0 on")
    return tuple(numbers)


def field(row: Any, name: str, kind: type[T]) -> T:
    """Return a field of an object in JSON. Errors: ValueError unless it is there, of this type."""
    value = row.get(name) if isinstance(row, dict) else None
    if type(value) is not kind:  # True is an int, too, but not here
        raise ValueError(f"{name} is {reprlib.repr(value)} and no {kind.__name__}")
    return value
