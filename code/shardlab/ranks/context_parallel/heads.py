"""Ulysses and gathering: what is exchanged before attention, and back after it.

Ulysses (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509) exchanges a part of the sequence for
a part of the heads. Llama 3 gathers keys and values (https://arxiv.org/abs/2407.21783, section
3.3.2). The ranks' parts may differ in length.

Shapes: N ranks, B = batch, H = heads, K = key/value heads, c = tokens of this rank, S = tokens of
all ranks, e = numbers per head.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shardlab import comm


class ToHeads(Function):
    """From a part of every head to all tokens of some heads; in backward the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, lengths: Sequence[int]) -> Tensor:
        ctx.where = group, lengths
        return to_heads(x, group, lengths)                            # -> [B, H/N, S, e]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return to_tokens(grad, *ctx.where), None, None


class ToTokens(Function):
    """From all tokens of some heads to a part of every head; in backward the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, lengths: Sequence[int]) -> Tensor:
        ctx.where = group, lengths
        return to_tokens(x, group, lengths)                           # -> [B, H, c, e]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return to_heads(grad, *ctx.where), None, None


class Gather(Function):
    """All tokens on every rank; in backward, sum their gradients and keep this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, lengths: Sequence[int]) -> Tensor:
        ctx.where = group, lengths
        rows = _filled(x, max(lengths))                               # [B, K, longest, e]
        parts = comm.all_gather(rows[None], group)                    # [N, B, K, longest, e]
        cut = [part[..., :length, :] for part, length in zip(parts, lengths, strict=True)]
        return torch.cat(cut, dim=-2)                                 # [B, K, S, e]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        group, lengths = ctx.where
        parts = grad.split(list(lengths), dim=-2)                     # [B, K, c, e], partial
        rows = torch.stack([_filled(part, max(lengths)) for part in parts])
        (mine,) = comm.reduce_scatter(rows, group)                    # [B, K, longest, e], whole
        return mine[..., : lengths[group.rank()], :], None, None


def to_heads(x: Tensor, group: comm.Group, lengths: Sequence[int]) -> Tensor:
    """Send each rank its heads, and join the tokens of all: [B, H, c, e] -> [B, H/N, S, e].

    lengths: tokens of each rank.
    """
    parts = x.chunk(group.size(), dim=1)                              # [B, H/N, c, e]
    shapes = [(*parts[0].shape[:2], length, x.shape[-1]) for length in lengths]
    return torch.cat(_swap(parts, shapes, group), dim=2)


def to_tokens(x: Tensor, group: comm.Group, lengths: Sequence[int]) -> Tensor:
    """Send each rank its tokens, and join the heads of all: [B, H/N, S, e] -> [B, H, c, e]."""
    parts = x.split(list(lengths), dim=2)                             # [B, H/N, c, e] of each rank
    shape = parts[group.rank()].shape
    return torch.cat(_swap(parts, [shape] * group.size(), group), dim=1)


def _swap(
    parts: Sequence[Tensor], shapes: Sequence[Sequence[int]], group: comm.Group
) -> list[Tensor]:
    """Send a part to each rank, and receive one of the given shape from each."""
    flat = torch.cat([part.flatten() for part in parts])
    receives = [torch.Size(shape).numel() for shape in shapes]
    arrived = comm.all_to_all(flat, group, [part.numel() for part in parts], receives)
    pieces = zip(arrived.split(receives), shapes, strict=True)
    return [piece.view(*shape) for piece, shape in pieces]


def _filled(x: Tensor, length: int) -> Tensor:
    """Fill the sequence up with zeros: [..., c, e] -> [..., length, e]."""
    missing = length - x.shape[-2]
    if not missing:
        return x
    return torch.cat([x, x.new_zeros(*x.shape[:-2], missing, x.shape[-1])], dim=-2)
