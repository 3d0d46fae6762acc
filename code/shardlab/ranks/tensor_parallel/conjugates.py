"""Pairs of operations between ranks, of which each is the other's backward.

                      forward                  backward
    CopyToRanks       nothing                  sum over ranks             Megatron's f
    SumOverRanks      sum over ranks           nothing                    Megatron's g
    GatherFromRanks   join all pieces          keep this rank's piece
    ScatterToRanks    keep this rank's piece   join all pieces

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Why "nothing" is right: if all
ranks compute the same from a tensor, each rank has its whole gradient; if each computes something
else from it, each has a part of the gradient, and the whole is the sum. No backward changes the
gradient that it is given: autograd may have lent the same tensor to a residual connection.

Shapes: n is the length along `dim` (written first) of one of t ranks' pieces; [...] is the rest.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shardlab import comm


class GatherFromRanks(Function):
    """The ranks' pieces joined along `dim`, from which all ranks compute the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return all_gather(x, group, dim)              # [n, ...] -> [t*n, ...]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        local = piece(grad, ctx.group, ctx.dim)       # [t*n, ...] -> [n, ...]
        return local, None, None


class ScatterToRanks(Function):
    """This rank's piece, along `dim`, of a tensor that all ranks have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, dim: int) -> Tensor:
        ctx.group = group
        ctx.dim = dim
        return piece(x, group, dim)                   # [t*n, ...] -> [n, ...]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        whole = all_gather(grad, ctx.group, ctx.dim)  # [n, ...] -> [t*n, ...]
        return whole, None, None


def piece(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """Copy this rank's piece, along `dim`, of a whole tensor: [t*n, ...] -> [n, ...].

    A copy, so that the whole can be freed. Errors: ValueError if `dim` does not divide.
    """
    size = group.size()
    if x.shape[dim] % size:
        raise ValueError(
            f"dim {dim} of a tensor of shape {tuple(x.shape)} does not split over {size} ranks; "
            f"pad it to a multiple of {size}"
        )
    view = x.chunk(size, dim)[group.rank()]
    return view.clone(memory_format=torch.contiguous_format)


def all_gather(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """Join the ranks' pieces along `dim`: [n, ...] -> [t*n, ...]."""
    return comm.all_gather(x.movedim(dim, 0), group).movedim(0, dim).contiguous()


def reduce_scatter(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """Sum over ranks and keep this rank's piece along `dim`: [t*n, ...] -> [n, ...]."""
    return comm.reduce_scatter(x.movedim(dim, 0), group).movedim(0, dim).contiguous()
