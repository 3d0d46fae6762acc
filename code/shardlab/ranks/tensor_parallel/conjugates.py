"""Pairs of operations between ranks, of which each is the other's backward.

                      forward                  backward
    CopyToRanks       nothing                  sum over ranks             Megatron's f
    SumOverRanks      sum over ranks           nothing                    Megatron's g
    GatherFromRanks   put the pieces together  keep this rank's piece
    ScatterToRanks    keep this rank's piece   put the pieces together

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Why "nothing" is right: where all ranks do the same
with a tensor, each of them computes its whole gradient; where each does something else, each computes a part of the
gradient, and the whole is the sum. No backward changes the gradient it was given: autograd may have lent the same
tensor to a residual connection.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .. import comm


class CopyToRanks(Function):
    """Every rank goes on with the same tensor, and does something else with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return comm.all_reduce(grad, ctx.group), None


class SumOverRanks(Function):
    """Every rank goes on with the sum, and all do the same with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        return comm.all_reduce(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class GatherFromRanks(Function):
    """Every rank goes on with all pieces, one after another along `dim`, and all do the same with them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return piece(grad, ctx.group, ctx.dim), None, None


class ScatterToRanks(Function):
    """Every rank goes on with its own piece, along `dim`, of what all ranks have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return piece(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gather(grad, ctx.group, ctx.dim), None, None


def piece(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """This rank's piece of a tensor that all ranks have, cut along `dim`; a copy, so that the whole can be freed."""
    size, length = group.size(), x.shape[dim]
    if length % size:
        raise ValueError(
            f"dim {dim} of a tensor of shape {tuple(x.shape)} does not split over {size} ranks; "
            f"pad it to a multiple of {size}"
        )
    return x.chunk(size, dim)[group.rank()].clone(memory_format=torch.contiguous_format)


def all_gather(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """Put the ranks' pieces one after another along `dim`: `comm.all_gather`, which knows dim 0 alone."""
    return comm.all_gather(x.movedim(dim, 0), group).movedim(0, dim).contiguous()


def reduce_scatter(x: Tensor, group: comm.Group, dim: int) -> Tensor:
    """Sum over ranks, keep this rank's piece along `dim`: `comm.reduce_scatter`, which knows dim 0 alone."""
    return comm.reduce_scatter(x.movedim(dim, 0), group).movedim(0, dim).contiguous()
