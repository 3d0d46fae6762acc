"""Find tensors in a folder of safetensors, and read parts of them without the rest.

    model.safetensors                                      # all tensors, or
    model.safetensors.index.json                           # which file has each tensor, and
    model-00001-of-00002.safetensors                       # several files

The library's slices read whole tensors, unless it maps the file to memory, which ends in SIGBUS
where somebody cuts the file meanwhile; so headers are parsed here, and rows are read with `preadv`.
Anybody may have written the files, so everything in them is checked.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlab.files import given

from ..index import MOST_NUMBERS, Numbers, field, numbers
from ..tensors import DTYPES

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_HEADER = 100 * 10**6  # bytes, the library's own limit
LENGTH = 8  # bytes before the header, which say how long it is
FLOATS = {  # what weights may be, by the names of a config.json
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor in a file."""

    file: Path
    dtype: torch.dtype
    shape: Numbers
    begin: int  # bytes from the beginning of the file


def tensors(folder: Path) -> dict[str, Stored]:
    """List the tensors of a checkpoint by name. Errors: ValueError with what is wrong."""
    if (folder / INDEX).is_file():
        places = _index(folder / INDEX)
    elif (folder / WHOLE).is_file():
        places = {}
    else:
        pickled = sorted(each.name for each in folder.glob("*.bin"))
        raise ValueError(
            f"{given.line(str(folder))} has neither {WHOLE} nor {INDEX}"
            + (
                f", and {pickled[0]} is a pickle, which can run code when it is read; convert it "
                "elsewhere with safetensors.torch.save_file"
                if pickled
                else "; use the folder of a published checkpoint"
            )
        )
    found: dict[str, Stored] = {}
    for name in sorted({*places.values()}) or [WHOLE]:
        for tensor, stored in _header(folder / name).items():
            if tensor in found:
                raise _wrong(stored.file, f"{tensor} is in {found[tensor].file.name}, too")
            if places and places.get(tensor) != name:
                raise _wrong(stored.file, f"it holds {tensor}, which {INDEX} places elsewhere")
            found[tensor] = stored
    for tensor, name in places.items():
        if tensor not in found:
            raise _wrong(folder / name, f"it lacks {tensor}, which {INDEX} places there")
    return found


def _index(file: Path) -> dict[str, str]:
    """Read which file holds each tensor. Errors: ValueError for a path that leaves the folder."""
    try:
        places = field(json.loads(given.read(file)), "weight_map", dict)
    except (ValueError, RecursionError) as error:
        raise _wrong(file, str(error)) from None
    for tensor, name in places.items():
        plain = isinstance(name, str) and Path(name).name == name and "\0" not in name
        if not plain or not name.endswith(".safetensors"):
            raise _wrong(file, f"{tensor} is in {name!r}, which is no .safetensors beside it")
    if not places:
        raise _wrong(file, "weight_map names no tensor")
    return places


def _header(file: Path) -> dict[str, Stored]:
    """Read the header of a file. Errors: ValueError for tensors that overlap or leave the file."""
    if not file.is_file():
        raise _wrong(file, "it is missing")
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH), "little")
        if size < LENGTH or length > min(size - LENGTH, MOST_HEADER):
            raise _wrong(file, f"a header of {length} bytes does not fit its {size} bytes")
        text = opened.read(length)
    try:
        rows = json.loads(text.decode())
        if not isinstance(rows, dict):
            raise ValueError("its header is no object")
        rows.pop("__metadata__", None)
        found = {name: _stored(file, name, row, LENGTH + length) for name, row in rows.items()}
    except (ValueError, RecursionError) as error:
        raise _wrong(file, str(error)) from None
    end = LENGTH + length
    for name, each in sorted(found.items(), key=lambda item: item[1].begin):
        nbytes = prod(each.shape) * each.dtype.itemsize
        if nbytes and each.begin < end:
            raise _wrong(file, f"{name} overlaps the tensor before it")
        end = max(end, each.begin + nbytes)
        if end > size:
            raise _wrong(file, f"{name} ends at byte {end} of {size}: it was cut short")
    return found


def _stored(file: Path, name: str, row: Any, start: int) -> Stored:
    dtype, shape = field(row, "dtype", str), numbers(row, "shape")
    places = numbers(row, "data_offsets")
    if DTYPES.get(dtype) is None:
        raise ValueError(f"the dtype of {name} is {dtype!r}, which is not known")
    if prod(max(1, length) for length in shape) > MOST_NUMBERS:
        raise ValueError(f"the shape of {name} is {shape}, which torch cannot hold")
    nbytes = prod(shape) * DTYPES[dtype].itemsize
    if not places or places[1:] != (places[0] + nbytes,):
        raise ValueError(f"{name} of {nbytes} bytes has data_offsets {list(places)}")
    return Stored(file=file, dtype=DTYPES[dtype], shape=shape, begin=start + places[0])


def _wrong(file: Path, what: str) -> ValueError:
    return ValueError(given.line(f"{file} cannot be read: {what}; download the checkpoint again"))


class Reader:
    """Opens files when they are needed, until it is closed, and counts the bytes that it reads."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._opened: dict[Path, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def read(self, stored: Stored, offsets: Numbers, sizes: Numbers) -> Tensor:
        """Read a box of a vector or a matrix: -> [*sizes], on the CPU, in the file's dtype."""
        if stored.file not in self._opened:
            opened = self._stack.enter_context(stored.file.open("rb", buffering=0))
            self._opened[stored.file] = opened.fileno()
        box = torch.empty(sizes, dtype=stored.dtype)
        room = memoryview(box.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        for begin, count in runs(stored.shape, offsets, sizes):
            at, nbytes = begin * stored.dtype.itemsize, count * stored.dtype.itemsize
            self._fill(stored, room[:nbytes], stored.begin + at)
            room = room[nbytes:]
        return box

    def _fill(self, stored: Stored, room: memoryview, at: int) -> None:
        while len(room):
            got = os.preadv(self._opened[stored.file], [room], at)
            if not got:
                raise _wrong(stored.file, f"it ends at byte {at}: it was cut meanwhile")
            self.nbytes += got
            room, at = room[got:], at + got


def runs(shape: Numbers, offsets: Numbers, sizes: Numbers) -> Iterator[tuple[int, int]]:
    """List the runs of a box, as first number and count: one for whole rows, or one for each."""
    width = prod(shape[1:])
    begin = (*offsets, 0)[1]  # 0 in a vector
    if sizes[1:] == shape[1:]:
        yield offsets[0] * width, sizes[0] * width
    else:
        for row in range(offsets[0], offsets[0] + sizes[0]):
            yield row * width + begin, sizes[1]
