"""Save and load checkpoints that any layout can read: they hold every number of the model once.

torch.distributed.checkpoint (DCP, https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)
writes boxes of tensors, each from one of the ranks that have it, and finds out for every rank which
parts of which files fill its boxes.

    checkpoint.save(folder, 12, group, boxes, facts)      # folder/step-00000012, or nothing at all
    path = checkpoint.latest(folder)                      # the last complete checkpoint

DCP unpickles its file .metadata, which can run any code: load only checkpoints that you trust.
"""

import io
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
from .boxes import Box, whole
from .folders import NAME, complete, delete, delete_partial, flush

WEIGHTS = "weights/"  # the kind of a parameter itself
Size = torch.Size
Contents = dict[str, TensorStorageMetadata]


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
    """Save the boxes of all ranks in folder/step-..., then delete all but the last `keep`.

    All ranks call it. Boxes that several ranks have must be equal.

    facts  plain data, the same on all ranks
    own    plain data of this rank, such as its random states

    A kill at any moment leaves the earlier checkpoints: the new one gets its name when it is
    complete. Errors: ValueError for a step that exists already; DCP's where the boxes of all ranks
    do not fill every tensor.
    """
    folder = Path(folder)
    first = group.rank() == 0
    path = folder / NAME.format(step)
    part = folder / f".{path.name}.part"
    if path.exists():
        raise ValueError(
            f"{path} is there already; go on from it (checkpoint.latest), "
            "or save into another folder"
        )
    comm.barrier(group)
    if first:
        delete_partial(folder)
        part.mkdir(parents=True)
    comm.barrier(group)
    data = {"facts": {**facts, "step": step}, _own(group.rank(), group.size()): own}
    dcp.save(
        {},
        storage_writer=dcp.FileSystemWriter(part),
        planner=Writing(boxes, data),
        process_group=group,
    )
    if first:
        flush(part)
        part.rename(path)
        flush(folder)
        for old in complete(folder)[:-keep]:
            delete(old)
    comm.barrier(group)
    return path


def _own(rank: int, size: int) -> str:
    """Name the data of one rank."""
    return f"rank {rank} of {size}"


# ---- what is in a checkpoint -------------------------------------------------------------------


def contents(path: str | Path) -> Contents:
    """Describe the tensors that a checkpoint holds: kind/parameter -> DCP's metadata (size, dtype).

    Errors: ValueError with the file that is missing or too short.
    """
    path = Path(path)
    if not (path / ".metadata").is_file():
        raise ValueError(
            f"{path} is no checkpoint: it has no file .metadata; "
            "pass what checkpoint.latest(...) returns"
        )
    metadata = dcp.FileSystemReader(path).read_metadata()
    _check_sizes(path, metadata.storage_data.values())
    tensors: Contents = {}
    for name, each in metadata.state_dict_metadata.items():
        if isinstance(each, TensorStorageMetadata):
            tensors[name] = each
    return tensors


def _check_sizes(path: Path, stored: Iterable[Any]) -> None:
    """Check that every file is there, and as long as what it stores; ValueError otherwise."""
    needed: dict[str, int] = {}
    for place in stored:
        end = place.offset + place.length
        needed[place.relative_path] = max(needed.get(place.relative_path, 0), end)
    for name, nbytes in needed.items():
        file = path / name
        state = f"has {file.stat().st_size} bytes of {nbytes}" if file.is_file() else "is missing"
        if not file.is_file() or file.stat().st_size < nbytes:
            raise ValueError(
                f"{path} is damaged: its file {name} {state}; use an earlier checkpoint"
            )


def load(path: str | Path, group: comm.Group, boxes: Iterable[Box]) -> tuple[dict[str, Any], Any]:
    """Fill this rank's boxes from a checkpoint; all ranks call it, after `check`.

    Returns the facts; and this rank's own data, or None if another number of ranks has saved.
    """
    own = _own(group.rank(), group.size())
    reading = Reading(boxes, ["facts", own])
    dcp.load({}, storage_reader=dcp.FileSystemReader(path), planner=reading, process_group=group)
    return reading.data["facts"], reading.data.get(own)


def check(path: str | Path, saved: Contents, shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that a checkpoint holds weights of these names and shapes, and no others.

    Errors: ValueError with the first parameter that differs.
    """
    held = {}
    for name, each in saved.items():
        if name.startswith(WEIGHTS):
            held[name.removeprefix(WEIGHTS)] = each.size
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


def weights(path: str | Path) -> dict[str, Tensor]:
    """Load the parameters of the plain model, whole, in a single process."""
    found: dict[str, Tensor] = {}
    for name, each in contents(path).items():
        if name.startswith(WEIGHTS):
            found[name] = torch.empty(each.size, dtype=each.properties.dtype)
    planner = Reading([whole(name, tensor) for name, tensor in found.items()], [])
    reader = dcp.FileSystemReader(path)
    with warnings.catch_warnings():
        # torch warns that it does what `no_dist` asks for
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load({}, storage_reader=reader, planner=planner, no_dist=True)
    return {name.removeprefix(WEIGHTS): tensor for name, tensor in found.items()}


# ---- planners for DCP --------------------------------------------------------------------------


class Writing(dcp.DefaultSavePlanner):
    """A plan to save this rank's boxes and data.

    DCP saves what several ranks offer from one of them, and checks that every tensor is complete.
    """

    def __init__(self, boxes: Iterable[Box], data: Mapping[str, Any]) -> None:
        super().__init__(flatten_state_dict=False)
        self.boxes = {_index(box): box for box in boxes}
        self.data = data

    def create_local_plan(self) -> SavePlan:
        items = []
        for index, box in self.boxes.items():
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=_written(box)))
        for name in self.data:
            items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            data = io.BytesIO()
            torch.save(self.data[write_item.index.fqn], data)
            return data
        return self.boxes[write_item.index].tensor.detach()


class Reading(dcp.DefaultLoadPlanner):
    """A plan to load this rank's boxes, and the data of these names, which goes to `data`."""

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
