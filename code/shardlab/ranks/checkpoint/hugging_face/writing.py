"""Write a checkpoint in the files of Hugging Face from ranks in any layout, every byte once.

Names and shapes say where each number lies in the files, so nobody gathers anything:

    1. the first rank makes .NAME.part, and in it files of their full length, with headers
    2. every rank writes the boxes that `saving.share` gives it where they belong
    3. the first rank adds config.json, the index and the tokenizer's files, and renames the folder

Two ranks write disjoint parts of one file, which local disks, Lustre and GPFS allow, and object
stores do not.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlab import comm
from shardlab.files import given
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import listed

from .. import tensors
from ..boxes import TensorBox
from ..folders import flush
from ..index import Piece, collect
from ..saving import piece_of, share
from ..together import from_all, together
from .files import FLOATS, INDEX, WHOLE, Stored, runs
from .names import FilePlace, sources
from .reading import WEIGHTS

CONFIG = "config.json"
MOST_BYTES = 5 * 10**9  # of a file, if no tensor has more
# What a tokenizer and the settings of generation are kept in.
COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("vocab.json", "merges.txt", "generation_config.json"),
)


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a checkpoint before any number is in them."""

    headers: Mapping[str, bytes]  # by the name of the file
    lengths: Mapping[str, int]  # bytes of each file
    places: Mapping[str, Stored]  # by the name of the tensor


def write(
    folder: str | Path,
    config: Mapping[str, Any],
    spec: TransformerSpec,
    group: comm.Group,
    boxes: Iterable[TensorBox],
    *,
    tokenizer: str | Path | None = None,
    most: int = MOST_BYTES,
) -> None:
    """Write the boxes of all ranks' weights as a published checkpoint; all ranks call it.

    config     the contents of its config.json: "architectures" names the tensors, and "dtype" (or
               "torch_dtype", in older files; float32 without both) is what numbers are rounded to
    tokenizer  a folder whose tokenizer files are copied
    most       bytes of a file, at which the next one begins; 0: a file for each tensor

    The folder gets its name when it is complete, so a kill at any moment leaves none of that name.
    Errors, raised on all ranks, which leave nothing behind: ValueError for a folder that is there
    already, a config that names no architecture or dtype that is known here, or that ties the head
    and the model does not, and where boxes of all ranks do not fill every tensor; OSError where a
    rank cannot write.
    """
    path = Path(folder)
    part = path.with_name(f".{path.name}.part")
    rank = group.rank()

    def first(act: Callable[[], None]) -> None:
        together(group, act if rank == 0 else lambda: None)

    def plan() -> tuple[dict[str, FilePlace], Files]:
        places = sources(_architecture(config), spec)
        _check_tied(config, spec)
        return places, _files(part, places.values(), _dtype(config), most)

    def begin() -> None:
        collect(dict.fromkeys(each, 0) for each in by_writer)  # refuses what is no whole model
        _begin(path, part)

    def write_mine() -> None:
        _write({piece: held[piece] for piece in by_writer[rank]}, places, files.places)

    places, files = together(group, plan)[rank]
    held = {piece_of(box): box.tensor for box in boxes}
    writers = share(from_all(list(held), group))
    by_writer = [[each for each in writers if writers[each] == n] for n in range(group.size())]
    first(begin)
    try:
        first(lambda: _lay_out(part, files))
        together(group, write_mine)
        first(lambda: _finish(part, path, files, _config(config, spec), tokenizer))
    except (OSError, ValueError):
        first(lambda: shutil.rmtree(part, ignore_errors=True))
        raise


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        said = given.line(repr(named))
        raise ValueError(f"architectures={said} must be a list of one name; write it into config")
    return named[0]


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    if not isinstance(name, str) or name not in FLOATS:
        raise ValueError(f"dtype={given.line(repr(name))} cannot be written; use {listed(FLOATS)}")
    return FLOATS[name]


def _check_tied(config: Mapping[str, Any], spec: TransformerSpec) -> None:
    if config.get("tie_word_embeddings", spec.tied) != spec.tied:
        raise ValueError(
            f"config has tie_word_embeddings={config['tie_word_embeddings']!r}, and the model has "
            f"tied={spec.tied}; set the field to what the model has"
        )


def _config(config: Mapping[str, Any], spec: TransformerSpec) -> dict[str, Any]:
    """Return the fields of the config with those that say what the files hold."""
    others = {name: value for name, value in config.items() if name != "torch_dtype"}
    dtype = str(_dtype(config)).removeprefix("torch.")
    return {**others, "dtype": dtype, "tie_word_embeddings": spec.tied}


def _files(part: Path, places: Iterable[FilePlace], dtype: torch.dtype, most: int) -> Files:
    """Deal the tensors to files, in the order of the model."""
    shapes = {place.name: (dtype, place.shape) for place in places}
    dealt: list[dict[str, tuple[torch.dtype, tuple[int, ...]]]] = [{}]
    size = 0
    for name, (_, shape) in shapes.items():
        nbytes = dtype.itemsize * prod(shape)
        if dealt[-1] and size + nbytes > most:
            dealt.append({})
            size = 0
        dealt[-1][name] = shapes[name]
        size += nbytes
    headers, lengths, stored = {}, {}, {}
    for number, each in enumerate(dealt, start=1):
        file = f"model-{number:05d}-of-{len(dealt):05d}.safetensors" if len(dealt) > 1 else WHOLE
        headers[file], begins = tensors.header(each, format="pt")
        lengths[file] = len(headers[file])
        for name, begin in begins.items():
            shape = each[name][1]
            stored[name] = Stored(file=part / file, dtype=dtype, shape=shape, begin=begin)
            lengths[file] += dtype.itemsize * prod(shape)
    return Files(headers=headers, lengths=lengths, places=stored)


def _begin(path: Path, part: Path) -> None:
    """Make the partial folder. Errors: ValueError if the folder is there already."""
    if os.path.lexists(path):
        raise ValueError(f"{given.line(str(path))} is there already; write into another folder")
    shutil.rmtree(part, ignore_errors=True)  # a killed run has left it
    part.mkdir(parents=True)


def _lay_out(part: Path, files: Files) -> None:
    """Make every file, with its header and of its length."""
    for name, header in files.headers.items():
        with (part / name).open("wb") as opened:
            opened.write(header)
            opened.truncate(files.lengths[name])


def _write(
    held: Mapping[Piece, Tensor], places: Mapping[str, FilePlace], files: Mapping[str, Stored]
) -> None:
    """Write boxes where they belong, and flush the files."""
    opened: dict[Path, int] = {}
    with ExitStack() as stack:
        for piece, tensor in held.items():
            place = places[piece.name.removeprefix(WEIGHTS)]
            stored = files[place.name]
            if stored.file not in opened:
                file = stack.enter_context(stored.file.open("r+b", buffering=0))
                opened[stored.file] = file.fileno()
            numbers = tensor.detach().to(stored.dtype)
            room = tensors.as_bytes(numbers.T if place.transposed else numbers)
            offsets, sizes = place.place(piece.offsets, piece.sizes)
            width = stored.dtype.itemsize
            done = 0
            for begin, count in runs(stored.shape, offsets, sizes):
                run = memoryview(room)[done : done + count * width]
                _put(opened[stored.file], run, stored.begin + begin * width)
                done += count * width
        for handle in opened.values():
            os.fsync(handle)


def _put(handle: int, numbers: memoryview, at: int) -> None:
    while len(numbers):
        count = os.pwrite(handle, numbers, at)
        numbers, at = numbers[count:], at + count


def _finish(
    part: Path,
    path: Path,
    files: Files,
    config: Mapping[str, Any],
    tokenizer: str | Path | None,
) -> None:
    """Add the small files, and give the folder its name."""
    _write_json(part / CONFIG, dict(sorted(config.items())))
    if len(files.headers) > 1:
        total = sum(prod(each.shape) * each.dtype.itemsize for each in files.places.values())
        where = {name: each.file.name for name, each in sorted(files.places.items())}
        _write_json(part / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    for pattern in COPIED if tokenizer is not None else ():
        for file in filter(Path.is_file, Path(str(tokenizer)).glob(pattern)):
            shutil.copyfile(file, part / file.name)
            flush(part / file.name)
    flush(part)
    part.rename(path)
    flush(path.parent)


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n")
    flush(file)
