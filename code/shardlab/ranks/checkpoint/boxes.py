"""Which boxes of which whole tensors a rank holds, however they are cut: what makes a checkpoint fit other ranks.

Tensor parallelism cuts a matrix by rows or columns; ZeRO cuts what is left of it where a flat buffer is cut, in the
middle of a row. An interval of a flattened matrix is three boxes at most:

    . . . .
    . . a a     the end of a row
    b b b b     whole rows
    c . . .     the beginning of a row
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...cuts import Cut
from ..data_parallel.replica import Replica
from ..zero import Zero

COUNT = "step"  # what torch's optimizers call their count of steps, which belongs to no single number
Offsets = tuple[int, ...]


class Box(NamedTuple):
    """A part of a named tensor, in the rank's own memory: to write into a checkpoint, or to fill from one."""

    name: str
    shape: tuple[int, ...]  # of the whole
    offsets: Offsets
    tensor: Tensor


@dataclass(frozen=True)
class Span:
    """An interval of a parameter's piece, flattened; and where its optimizer keeps what belongs to it."""

    name: str  # in the plain model
    cut: Cut
    rank: int  # of tensor parallelism
    begin: int  # in the flattened piece
    numbers: Tensor  # [n]
    optimizer: Optimizer
    key: Tensor  # under which the optimizer keeps its states
    place: slice  # of the interval in that, flattened

    def weights(self) -> Iterator[Box]:
        """The parameter itself."""
        return self._boxes("weights", self.numbers)

    def states(self) -> Iterator[Box]:
        """What the optimizer keeps. Errors: ValueError for what is no tensor."""
        for name, value in self.optimizer.state.get(self.key, {}).items():
            if not isinstance(value, Tensor):
                raise ValueError(f"the optimizer keeps {name}={value!r}, and a checkpoint holds tensors only")
            if self._is_for_each(name, value):
                yield from self._boxes(name, value.view(-1)[self.place])
            else:
                yield Box(f"{name}/{self.name}", tuple(value.shape), (0,) * value.dim(), value)

    def expect(self, saved: Mapping[str, Any]) -> None:
        """Make room for the states that a checkpoint holds, by its `contents`; forget all others."""
        self.optimizer.state.pop(self.key, None)
        for name, each in saved.items():
            kind, _, parameter = name.partition("/")
            if parameter == self.name and kind != "weights":
                alike = tuple(each.size) == self.cut.shape and kind != COUNT
                like = self.key if alike else torch.empty(each.size)  # single numbers: on the CPU, as in torch
                self.optimizer.state[self.key][kind] = torch.zeros_like(like, dtype=each.properties.dtype)

    def _is_for_each(self, name: str, value: Tensor) -> bool:
        return name != COUNT and value.shape == self.key.shape

    def _boxes(self, kind: str, numbers: Tensor) -> Iterator[Box]:
        """Of the interval, in the whole; the padding of a vocabulary belongs to none."""
        start, dim = self.cut.held(self.rank).start, self.cut.dim
        at = 0
        for offsets, sizes in boxes(self.cut.local_shape, self.begin, self.begin + len(numbers)):
            tensor = numbers[at : at + prod(sizes)].view(sizes)
            at += prod(sizes)
            if dim is not None:
                real = len(self.cut.held(self.rank)) - offsets[dim]
                tensor = tensor.narrow(dim, 0, max(0, min(real, sizes[dim])))
                offsets = (*offsets[:dim], offsets[dim] + start, *offsets[dim + 1 :])
            if tensor.numel():
                yield Box(f"{kind}/{self.name}", self.cut.shape, offsets, tensor)


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[tuple[Offsets, tuple[int, ...]]]:
    """Offsets and sizes of the boxes that make up an interval of a flattened tensor, in its order."""
    if not shape:
        yield (), ()
    elif len(shape) == 1:
        yield (begin,), (end - begin,)
    else:
        row = prod(shape[1:])
        while begin < end:
            number, inside = divmod(begin, row)
            if inside == 0 and (count := (end - begin) // row):
                yield (number, *(0 for _ in shape[1:])), (count, *shape[1:])
                begin += count * row
            else:
                until = min(end, (number + 1) * row)
                for offsets, sizes in boxes(shape[1:], inside, until - number * row):
                    yield (number, *offsets), (1, *sizes)
                begin = until


def spans(states: Sequence[Replica | Zero], plan: Mapping[str, Cut], rank: int) -> Iterator[Span]:
    """All that a rank of tensor parallelism keeps of a model cut by the plan.

    A tied head that stands beside its embedding, on the last stage, has its name: both hold the same numbers.
    """
    for state in states:
        for name, begin, numbers, key, place in _kept(state):
            plain = name if name in plan else "embedding.tokens.weight"
            yield Span(plain, plan[plain], rank, begin, numbers, state.optimizer, key, place)


def _kept(state: Replica | Zero) -> Iterator[tuple[Any, ...]]:
    if isinstance(state, Replica):
        for name, parameter in state.named.items():
            yield name, 0, parameter.detach().view(-1), parameter, slice(None)
        return
    for flat in state.flats:
        begins = {name: begin for name, (begin, _) in zip(flat.names, flat.places, strict=True)}
        for name, place in flat.held:
            first = flat.group.rank() * flat.length + place.start - begins[name]
            yield name, first, flat.master[place], flat.master, place
