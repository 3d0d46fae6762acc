"""Sequence parallelism: between the cut matrices, each rank holds a slice of every sequence.

    slice -> norm -> | GatherSequence -> whole -> cut matrices -> partial sums -> ScatterSequence | -> slice

Korthikanti et al. 2022, section 4.2.2 (https://arxiv.org/abs/2205.05198). An all-reduce is a reduce-scatter followed by
an all-gather; where the two are pulled apart, what lies between them need only be done for a slice. Norms, residuals
and the bias after the sum treat every token by itself, so they can. The bytes are those of the all-reduce.
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .. import comm
from . import conjugates

SEQUENCE = 1  # the dim of [B, S, D] that is sliced


class GatherSequence(Function):
    """Slices become the whole sequence, which ranks then use for different things: [B, S/tp, D] -> [B, S, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return join(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_slices(grad, ctx.group), None


class ScatterSequence(Function):
    """Partial sums over whole sequences become slices of the sum: [B, S, D] -> [B, S/tp, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return sum_slices(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return join(grad, ctx.group), None


class SlicedPositions(nn.Module):
    """The learned vectors of this rank's slice of the positions: [S] -> [S/tp, D]."""

    def __init__(self, plain: nn.Embedding, group: comm.Group):
        super().__init__()
        self.weight, self.group = plain.weight, group

    def forward(self, positions: Tensor) -> Tensor:
        return F.embedding(conjugates.piece(positions, self.group, 0), self.weight)


def join(x: Tensor, group: comm.Group) -> Tensor:
    """The whole sequences, from the slices of all ranks: [B, S/tp, D] -> [B, S, D]."""
    return conjugates.all_gather(x, group, SEQUENCE)


def sum_slices(x: Tensor, group: comm.Group) -> Tensor:
    """This rank's slice of the sum over ranks: [B, S, D] -> [B, S/tp, D]. ValueError where sequences do not split."""
    length, size = x.shape[SEQUENCE], group.size()
    if length % size:
        raise ValueError(
            f"sequences of {length} tokens do not split over {size} ranks; "
            f"pad them to a multiple of {size}, or use sequence_parallel=False"
        )
    return conjugates.reduce_scatter(x, group, SEQUENCE)
