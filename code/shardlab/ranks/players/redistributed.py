"""A redistribution on played tensors: what happens to the numbers, in forward and in backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlab.sharding.types.redistribution import Redistribution


class RedistributePlayed(Function):
    """Redistribute in forward, and the gradient by the mirror in backward."""

    @staticmethod
    def forward(
        ctx: Any, held: Tensor, place: int, change: Redistribution, names: Sequence[str]
    ) -> Tensor:
        ctx.place = place
        ctx.change = change
        ctx.names = names
        return redistributed(held, place, change, names)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        result = redistributed(grad, ctx.place, ctx.change.mirror, ctx.names)
        return result, None, None, None


def redistributed(
    held: Tensor, place: int, change: Redistribution, names: Sequence[str]
) -> Tensor:
    """Redistribute along the axis in `place` of the mesh: [*mesh, *local] -> [*mesh, *local].

    names: of the tensor's dims, the last dims of `held`.
    """
    parts = list(held.unbind(place))
    before = parts[0].dim() - len(names)

    def cut(state: str) -> int:
        return before + names.index(state[2:-1])

    source, target = change.source, change.target
    if source[0] == "S" and target == "P":
        return torch.stack(_padded(parts, cut(source)), place)
    if source == "P":
        parts = [torch.stack(parts).sum(0)] * len(parts)
    elif source[0] == "S":
        parts = [torch.cat(parts, cut(source))] * len(parts)
    if target == "P":
        zeros = [torch.zeros_like(part) for part in parts[1:]]
        parts = [parts[0], *zeros]
    elif target[0] == "S":
        pieces = [part.chunk(len(parts), cut(target)) for part in parts]
        parts = [mine[rank] for rank, mine in enumerate(pieces)]
    return torch.stack(parts, place)


def _padded(parts: list[Tensor], dim: int) -> list[Tensor]:
    """Put zeros where other ranks have their pieces."""
    padded = []
    for rank in range(len(parts)):
        row = [torch.zeros_like(part) for part in parts]
        row[rank] = parts[rank]
        padded.append(torch.cat(row, dim))
    return padded
