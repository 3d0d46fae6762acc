"""The operations of a `Tracer`, on the tensors of all ranks.

An operation is what a rank computes by itself; only a redistribution mixes ranks. Nothing is
checked, so that a wrong program shows its wrong numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shardlab.sharding.types.redistribution import redistribution
from shardlab.sharding.types.states import Dim, Mesh, Sharding

from .redistributed import RedistributePlayed
from .spread import spread

FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "exp": torch.exp,
    "gelu": functional.gelu,
    "log": torch.log,
    "normalize": lambda x, dim: functional.normalize(x, dim=dim),
    "orthogonalize": lambda x, *dims: _orthogonal(x),  # its last two dims
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sqrt": torch.sqrt,
    "softmax": lambda x, dim: functional.softmax(x, dim=dim),
    "square": torch.square,
}


@dataclass(frozen=True)
class PlayedTensor:
    """What all ranks hold, [*mesh, *local], and the tensor's dims with the axes that cut them."""

    held: Tensor
    dims: tuple[Dim, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dims."""
        return tuple(dim.name for dim in self.dims)


class Players:
    """All ranks of a mesh. Each method returns what all of them compute."""

    def __init__(self, mesh: Mesh):
        """Take the ranks along each axis."""
        self.mesh = mesh

    def given(self, whole: Tensor, sharding: Sharding) -> PlayedTensor:
        """Spread an input; it is a leaf, and its `grad` has the gradients of all ranks."""
        held = spread(whole, sharding, self.mesh).contiguous()
        held.requires_grad_(not sharding.fixed)
        return PlayedTensor(held, sharding.dims)

    def product(self, names: str, *factors: PlayedTensor) -> PlayedTensor:
        """Multiply, keep the dims `names`, and sum over all others."""
        dims: dict[str, Dim] = {}
        for factor in factors:
            dims |= zip(factor.names, factor.dims, strict=True)
        numbers = {name: number for number, name in enumerate(dims)}
        operands: list[Any] = []
        for factor in factors:
            labels = [numbers[name] for name in factor.names]
            operands += [factor.held, [..., *labels]]
        kept = names.split()
        labels = [numbers[name] for name in kept]
        held = torch.einsum(*operands, [..., *labels])
        result = tuple(dims[name] for name in kept)
        return PlayedTensor(held, result)

    def add(self, x: PlayedTensor, y: PlayedTensor) -> PlayedTensor:
        """Add; one of them may lack dims."""
        long, short = x, y
        if len(x.dims) < len(y.dims):
            long, short = y, x
        ones = PlayedTensor(torch.ones_like(long.held), long.dims)
        repeated = self.product(" ".join(long.names), short, ones)
        return PlayedTensor(long.held + repeated.held, long.dims)

    def scale(self, x: PlayedTensor, number: float) -> PlayedTensor:
        """Multiply with a number that all ranks know."""
        return PlayedTensor(x.held * number, x.dims)

    def mean(self, x: PlayedTensor, dim: str) -> PlayedTensor:
        """Sum over a dim, and divide by its whole size."""
        place = x.names.index(dim)
        ranks = prod(self.mesh[axis] for axis in x.dims[place].axes)
        held = x.held.mean(len(self.mesh) + place) / ranks
        return PlayedTensor(held, x.dims[:place] + x.dims[place + 1 :])

    def function(self, name: str, x: PlayedTensor, *dims: str) -> PlayedTensor:
        """Apply one of FUNCTIONS to each number, or along dims."""
        places = [len(self.mesh) + x.names.index(dim) for dim in dims]
        return PlayedTensor(FUNCTIONS[name](x.held, *places), x.dims)

    def average(self, x: PlayedTensor, axis: str) -> PlayedTensor:
        """Average over the ranks of an axis."""
        held = x.held.mean(list(self.mesh).index(axis), keepdim=True).expand_as(x.held)
        return PlayedTensor(held, x.dims)

    def look_up(self, table: PlayedTensor, tokens: PlayedTensor) -> PlayedTensor:
        """Take the rows of `table` that `tokens` number; zeros for words of other ranks."""
        words, *width = table.dims
        size = table.held.shape[len(self.mesh)]
        size *= prod(self.mesh[axis] for axis in words.axes)
        mine = spread(torch.arange(size), Sharding((words,)), self.mesh)
        for _ in tokens.dims:
            mine = mine.unsqueeze(-2)
        here = tokens.held[..., None] == mine
        one_hot = PlayedTensor(here.to(table.held), (*tokens.dims, words))
        names = list(tokens.names)
        names += [dim.name for dim in width]
        return self.product(" ".join(names), one_hot, table)

    def rename(self, x: PlayedTensor, old: str, new: str) -> PlayedTensor:
        """Give a dim another name."""
        names = {old: new}
        dims = [Dim(names.get(dim.name, dim.name), dim.axes) for dim in x.dims]
        return PlayedTensor(x.held, tuple(dims))

    def detach(self, x: PlayedTensor) -> PlayedTensor:
        """Take the numbers without their gradient."""
        held = x.held.detach()
        return PlayedTensor(held, x.dims)

    def largest(self, x: PlayedTensor, dim: str) -> PlayedTensor:
        """Find the largest number along a dim; where ranks cut it, the largest of all ranks."""
        place = x.names.index(dim)
        held = x.held.amax(len(self.mesh) + place)
        for axis in x.dims[place].axes:
            number = list(self.mesh).index(axis)
            largest = held.amax(number, keepdim=True)
            held = largest.expand_as(held)
        others = x.dims[:place] + x.dims[place + 1 :]
        return PlayedTensor(held, others)

    def redistribute(
        self, x: PlayedTensor, axis: str, arrow: str, again: bool = False
    ) -> PlayedTensor:
        """Change the state along `axis`, for instance by "P -> I"; `again` changes no number."""
        change = redistribution(axis, arrow)
        place = list(self.mesh).index(axis)
        held = RedistributePlayed.apply(x.held, place, change, x.names)
        dims = []
        for dim in x.dims:
            axes = [each for each in dim.axes if each != axis]
            if change.target == f"S({dim.name})":
                axes.append(axis)
            dims.append(Dim(dim.name, tuple(axes)))
        return PlayedTensor(held, tuple(dims))

    def ring(
        self,
        axis: str,
        q: PlayedTensor,
        k: PlayedTensor,
        v: PlayedTensor,
        turns: int | None = None,
    ) -> PlayedTensor:
        """Attend to keys and values that go round an axis, and correct the softmax in each turn."""
        place = list(self.mesh).index(axis)
        (cut,) = (dim.name for dim in k.dims if axis in dim.axes)
        k, v = (self.rename(x, cut, "keys") for x in (k, v))
        y, lse = torch.zeros_like(q.held), torch.tensor(-torch.inf)
        for _ in range(self.mesh[axis] if turns is None else turns):
            scores = self.product(" ".join((*q.names[:-1], "keys")), q, k)
            new = torch.logaddexp(lse, scores.held.logsumexp(-1, keepdim=True))
            part = PlayedTensor((scores.held - new).exp(), scores.dims)
            of_block = self.product(" ".join(q.names), part, v)
            y = y * (lse - new).exp() + of_block.held
            lse = new
            k, v = (PlayedTensor(x.held.roll(1, place), x.dims) for x in (k, v))
        return PlayedTensor(y, q.dims)

    # ---- the end of the step -------------------------------------------------------------------

    def close(self, loss: PlayedTensor) -> PlayedTensor:
        """Let every rank start backward from what it holds."""
        loss.held.sum().backward()
        return loss

    def gradient(self, x: PlayedTensor) -> PlayedTensor:
        """Take the gradient of an input after backward."""
        grad = x.held.grad
        if grad is None:
            raise ValueError(f"no loss depends on this input with dims {', '.join(x.names)}")
        return PlayedTensor(grad, x.dims)

    def update(self, parameter: PlayedTensor, step: PlayedTensor) -> PlayedTensor:
        """Subtract a step."""
        held = parameter.held.detach()
        return PlayedTensor(held - step.held, parameter.dims)

    def log(self, number: PlayedTensor) -> PlayedTensor:
        """Return a number that is logged."""
        return number


def _orthogonal(x: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    result: Tensor = left @ right
    return result
