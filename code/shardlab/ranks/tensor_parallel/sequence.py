"""Sequence parallelism: between the cut matrices, each rank holds a slice of every sequence.

    slice -> norm -> GatherSequence | whole -> cut matrices -> partial sums | ScatterSequence ->
    slice

Korthikanti et al. 2022, section 4.2.2 (https://arxiv.org/abs/2205.05198). An all-reduce is a
reduce-scatter followed by an all-gather. Pulled apart, they leave slices between them, which is
enough for norms, residuals and the bias after the sum: these treat every token by itself. The bytes
sent are those of the all-reduce.

Shapes: B sequences of S tokens, h numbers a token; tp ranks have slices [B, S/tp, h].
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from shardlab import comm

from . import conjugates

SEQUENCE = 1  # the dim of [B, S, h] that is sliced


class GatherSequence(Function):
    """Whole sequences, joined from slices, from which each rank computes something else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return join(x, group)                       # [B, S/tp, h] -> [B, S, h]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_slices(grad, ctx.group), None    # [B, S, h], partial -> [B, S/tp, h]


class ScatterSequence(Function):
    """This rank's slice of the sum of the ranks' whole sequences."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return sum_slices(x, group)                 # [B, S, h], partial -> [B, S/tp, h]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return join(grad, ctx.group), None          # [B, S/tp, h] -> [B, S, h]


class SlicedPositions(nn.Module):
    """An embedding of positions that looks up this rank's slice of them."""

    def __init__(self, plain: nn.Embedding, group: comm.Group):
        super().__init__()
        self.weight = plain.weight
        self.group = group

    def forward(self, positions: Tensor) -> Tensor:  # [S] -> [S/tp, h]
        local = conjugates.piece(positions, self.group, 0)
        return F.embedding(local, self.weight)


def join(x: Tensor, group: comm.Group) -> Tensor:
    """Join the ranks' slices to whole sequences: [B, S/tp, h] -> [B, S, h]."""
    return conjugates.all_gather(x, group, SEQUENCE)


def sum_slices(x: Tensor, group: comm.Group) -> Tensor:
    """Sum over ranks and keep this rank's slice: [B, S, h], partial -> [B, S/tp, h].

    Errors: ValueError if sequences do not divide.
    """
    length = x.shape[SEQUENCE]
    size = group.size()
    if length % size:
        raise ValueError(
            f"sequences of {length} tokens do not split over {size} ranks; "
            f"pad them to a multiple of {size}, or use sequence_parallel=False"
        )
    return conjugates.reduce_scatter(x, group, SEQUENCE)
