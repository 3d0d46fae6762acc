"""Checkpoints that any layout can read: every number of the model is in them once, under its place in the whole.

torch.distributed.checkpoint (DCP, https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) writes boxes of
tensors, each from one of the ranks that have it, and finds out for every rank which parts of which files fill its own.

    checkpoint.save(folder, 12, group, boxes, facts)      # folder/step-00000012, whole or not at all
    path = checkpoint.latest(folder)                      # the last one that is whole
"""

import io
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from .. import comm
from .boxes import Box

NAME, WEIGHTS = "step-{:08d}", "weights/"
Size = torch.Size
Contents = dict[str, TensorStorageMetadata]


# ---- folders ---------------------------------------------------------------------------------------------------------


def save(
    folder: str | Path,
    step: int,
    group: comm.Group,
    boxes: Iterable[Box],
    facts: Mapping[str, Any],
    own: Any = None,
    *,
    keep: int = 2,
) -> Path:
    """Write the boxes of all ranks into folder/step-..., and then remove all but the last `keep`. All ranks call it.

    Boxes that several ranks have must be equal. facts: alike on all ranks; own: of this one, such as its random state;
    both plain data. A kill at any moment leaves the checkpoints before: the new one gets its name when it is whole.
    Errors: ValueError for a step that is there already; DCP's where the boxes are not the whole of every tensor.
    """
    folder, first = Path(folder), group.rank() == 0
    path, part = folder / NAME.format(step), folder / f".{NAME.format(step)}.part"
    if path.exists():
        raise ValueError(f"{path} is there already; go on from it (checkpoint.latest), or save into another folder")
    comm.barrier(group)
    if first:
        _sweep(folder)
        part.mkdir(parents=True)
    comm.barrier(group)
    data = {"facts": {**facts, "step": step}, _own(group.rank(), group.size()): own}
    dcp.save({}, storage_writer=dcp.FileSystemWriter(part), planner=Writing(boxes, data), process_group=group)
    if first:
        _settle(part)
        part.rename(path)
        _settle(folder)
        for old in _whole(folder)[:-keep]:
            _remove(old)
    comm.barrier(group)
    return path


def latest(folder: str | Path) -> Path | None:
    """The last checkpoint in a folder; None where there is none."""
    found = _whole(Path(folder))
    return found[-1] if found else None


def _whole(folder: Path) -> list[Path]:
    """Those that have their name, oldest first."""
    return sorted(folder.glob(NAME.format(0).replace("0", "[0-9]")))


def _remove(path: Path) -> None:
    """First from the names of whole ones, and then from the disk."""
    away = path.with_name(f".{path.name}.old")
    path.rename(away)
    shutil.rmtree(away)


def _sweep(folder: Path) -> None:
    """Away with what a killed run has left."""
    for left in [*folder.glob(".step-*.part"), *folder.glob(".step-*.old")]:
        shutil.rmtree(left)


def _settle(folder: Path) -> None:
    """Return when the names in a folder are on the disk; DCP has done so for the files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _own(rank: int, size: int) -> str:
    return f"rank {rank} of {size}"


# ---- what is in them -------------------------------------------------------------------------------------------------


def contents(path: str | Path) -> Contents:
    """The tensors that a checkpoint holds, as DCP describes them: kind/parameter -> size, dtype.

    Errors: ValueError that says which file is missing or too short.
    """
    path = Path(path)
    if not (path / ".metadata").is_file():
        raise ValueError(f"{path} is no checkpoint: it has no file .metadata; pass what checkpoint.latest(...) returns")
    found = dcp.FileSystemReader(path).read_metadata()
    needed: dict[str, int] = {}
    for place in found.storage_data.values():
        needed[place.relative_path] = max(needed.get(place.relative_path, 0), place.offset + place.length)
    for name, nbytes in needed.items():
        there = (path / name).stat().st_size if (path / name).is_file() else None
        if there is None or there < nbytes:
            state = "is missing" if there is None else f"has {there} bytes of {nbytes}"
            raise ValueError(f"{path} is damaged: its file {name} {state}; use an earlier checkpoint")
    return {name: each for name, each in found.state_dict_metadata.items() if isinstance(each, TensorStorageMetadata)}


def load(path: str | Path, group: comm.Group, boxes: Iterable[Box]) -> tuple[dict[str, Any], Any]:
    """Fill this rank's boxes; returns the facts, and what the same rank of equally many wrote as its own, else None.

    All ranks call it, after `check`.
    """
    own = _own(group.rank(), group.size())
    reading = Reading(boxes, ["facts", own])
    dcp.load({}, storage_reader=dcp.FileSystemReader(path), planner=reading, process_group=group)
    return reading.data["facts"], reading.data.get(own)


def check(path: str | Path, saved: Contents, shapes: Mapping[str, Sequence[int]]) -> None:
    """ValueError unless the checkpoint holds the weights of these names and shapes, and no others."""
    held = {name.removeprefix(WEIGHTS): tuple(x.size) for name, x in saved.items() if name.startswith(WEIGHTS)}
    for name in sorted({*held, *shapes}):
        there, here = (tuple(which[name]) if name in which else "missing" for which in (held, shapes))
        if there != here:
            raise ValueError(
                f"{path} is of another model: {name} is {there} there, and {here} here; build the model that was saved"
            )


def weights(path: str | Path) -> dict[str, Tensor]:
    """The parameters of the plain model, whole, without any other rank: to look at, or to run the model."""
    saved = {name: each for name, each in contents(path).items() if name.startswith(WEIGHTS)}
    whole = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in saved.items()}
    boxes = [Box(name, tuple(x.shape), (0,) * x.dim(), x) for name, x in whole.items()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # which is what is asked for
        dcp.load({}, storage_reader=dcp.FileSystemReader(path), planner=Reading(boxes, []), no_dist=True)
    return {name.removeprefix(WEIGHTS): tensor for name, tensor in whole.items()}


# ---- how DCP is told -------------------------------------------------------------------------------------------------


class Writing(dcp.DefaultSavePlanner):
    """Offers this rank's boxes and data. What several offer, DCP takes from one, and looks whether all is there."""

    def __init__(self, boxes: Iterable[Box], data: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False)
        self.boxes = {_index(box): box for box in boxes}
        self.data = data

    def create_local_plan(self) -> SavePlan:
        items = [WriteItem(i, WriteItemType.SHARD, tensor_data=_written(box)) for i, box in self.boxes.items()]
        self.plan = SavePlan(items + [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in self.data])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            data = io.BytesIO()
            torch.save(self.data[write_item.index.fqn], data)
            return data
        return self.boxes[write_item.index].tensor.detach()


class Reading(dcp.DefaultLoadPlanner):
    """Asks for this rank's boxes, and for data of these names, which is in `data` then, where it was saved."""

    def __init__(self, boxes: Iterable[Box], names: Sequence[str]) -> None:
        super().__init__(flatten_state_dict=False)
        self.boxes = {_index(box): box for box in boxes}
        self.names = names
        self.data: dict[str, Any] = {}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items = []
        for box in self.boxes.values():
            saved = self.metadata.state_dict_metadata[box.name]
            assert isinstance(saved, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(box.name, saved, [_chunk(box)])
        none = Size([0])
        for name in self.names:
            if name in self.metadata.state_dict_metadata:
                index = MetadataIndex(name)
                items.append(ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none))
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.data[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.boxes[MetadataIndex(index.fqn, index.offset)].tensor.detach()


def _index(box: Box) -> MetadataIndex:
    return MetadataIndex(box.name, Size(box.offsets))


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=Size(box.offsets), sizes=box.tensor.shape)


def _written(box: Box) -> TensorWriteData:
    properties = TensorProperties.create_from_tensor(box.tensor)
    return TensorWriteData(chunk=_chunk(box), properties=properties, size=Size(box.shape))
