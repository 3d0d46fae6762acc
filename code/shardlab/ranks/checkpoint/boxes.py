"""Describe what a rank holds as boxes of whole tensors, so that ranks in any layout can load it.

Tensor parallelism cuts a matrix by rows or columns; ZeRO cuts such a piece again where its flat
buffer is cut, often in the middle of a row. `sharding.places.boxes` makes boxes of an interval.

Shapes: n = numbers in an interval. A *piece* is what one rank of tensor parallelism holds of a
parameter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardlab.sharding.cuts import Cut
from shardlab.sharding.places import boxes

from ..data_parallel.replica import Replica
from ..zero import Zero
from .index import SavedTensor

COUNT = "step"  # the key of the count of steps in torch's optimizers, one for each tensor
Offsets = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TensorBox:
    """A box of a named tensor in the rank's own memory, to save or to load."""

    name: str  # kind/parameter
    shape: tuple[int, ...]  # of the whole
    offsets: Offsets
    tensor: Tensor


@dataclass(frozen=True, kw_only=True)
class Span:
    """An interval of a flattened piece of a parameter, with its optimizer states."""

    name: str  # in the plain model
    cut: Cut
    rank: int  # of tensor parallelism
    begin: int  # in the flattened piece
    numbers: Tensor  # [n]
    optimizer: Optimizer
    key: Tensor  # the optimizer's key for the states
    place: slice  # of the interval in the flattened key

    def weights(self) -> Iterator[TensorBox]:
        """List the boxes of the parameter."""
        return self._boxes("weights", self.numbers)

    def states(self) -> Iterator[TensorBox]:
        """List the boxes of its optimizer states. Errors: ValueError if a state is no tensor."""
        for name, value in self.optimizer.state.get(self.key, {}).items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"the optimizer keeps {name}={value!r}, but a checkpoint holds tensors only; "
                    "use an optimizer that keeps tensors, or save a checkpoint without it"
                )
            if name != COUNT and value.shape == self.key.shape:
                yield from self._boxes(name, value.view(-1)[self.place])
            else:
                yield whole(f"{name}/{self.name}", value)

    def expect(self, saved: Mapping[str, SavedTensor]) -> None:
        """Allocate the optimizer states that a checkpoint holds, and drop all others.

        saved: the checkpoint's `contents`.
        """
        self.optimizer.state.pop(self.key, None)
        for name, each in saved.items():
            kind, _, parameter = name.partition("/")
            if parameter != self.name or kind == "weights":
                continue
            like = torch.empty(each.shape)  # a single number is on the CPU, as in torch
            if kind != COUNT and each.shape == self.cut.shape:
                like = self.key
            state = torch.zeros_like(like, dtype=each.dtype)
            self.optimizer.state[self.key][kind] = state

    def _boxes(self, kind: str, numbers: Tensor) -> Iterator[TensorBox]:
        """List the boxes of the interval in the whole tensor, without the padding of a vocabulary.

        numbers: [n], those of the interval.
        """
        dim = self.cut.dim
        at = 0
        piece = tuple(map(range, self.cut.local_shape))
        for box in boxes(piece, self.begin, self.begin + len(numbers)):
            offsets, sizes = tuple(each.start for each in box), tuple(map(len, box))
            tensor = numbers[at : at + prod(sizes)].view(sizes)
            at += prod(sizes)
            if dim is not None:
                held = self.cut.held(self.rank)
                unpadded = max(0, min(len(held) - offsets[dim], sizes[dim]))
                tensor = tensor.narrow(dim, 0, unpadded)
                offset = offsets[dim] + held.start
                offsets = (*offsets[:dim], offset, *offsets[dim + 1 :])
            if tensor.numel():
                name = f"{kind}/{self.name}"
                yield TensorBox(name=name, shape=self.cut.shape, offsets=offsets, tensor=tensor)


def whole(name: str, tensor: Tensor) -> TensorBox:
    """Make a box that is the whole tensor."""
    shape = tuple(tensor.shape)
    return TensorBox(name=name, shape=shape, offsets=(0,) * len(shape), tensor=tensor)


def spans(
    states: Sequence[Replica | Zero], cuts: Mapping[str, Cut], rank: int
) -> Iterator[Span]:
    """List all that this rank keeps of a model, by parameter.

    cuts: of the parameters of the plain model. rank: this rank's in tensor parallelism. The copy of
    a tied head, on the last stage, is listed as the embedding, which has the same numbers.
    """
    for state in states:
        kept = _of_replica(state) if isinstance(state, Replica) else _of_zero(state)
        for name, interval in kept:
            plain = name if name in cuts else "embedding.tokens.weight"
            yield Span(
                name=plain, cut=cuts[plain], rank=rank, optimizer=state.optimizer, **interval
            )


def _of_replica(state: Replica) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the parameters, each with the fields of a span that tell where its numbers are."""
    for name, parameter in state.named.items():
        numbers = parameter.detach().view(-1)                         # [n], the whole piece
        yield name, {"begin": 0, "numbers": numbers, "key": parameter, "place": slice(None)}


def _of_zero(state: Zero) -> Iterator[tuple[str, dict[str, Any]]]:
    """List this rank's slices of parameters, each with the fields that tell where they are."""
    for flat in state.flats:
        begins = {name: begin for name, (begin, _) in zip(flat.names, flat.places, strict=True)}
        for name, place in flat.held:
            begin = flat.group.rank() * flat.length + place.start - begins[name]
            numbers = flat.master[place]                              # [n]
            yield name, {"begin": begin, "numbers": numbers, "key": flat.master, "place": place}
