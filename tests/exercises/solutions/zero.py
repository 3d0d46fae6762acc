"""Solutions of the exercises on ZeRO."""

import torch
from torch.nn import functional

from shardlab import comm
from shardlab.plain.zero import rows


def my_pieces(sizes, rank, world_size):
    length = -(-sum(sizes) // world_size)
    first = rank * length
    start = 0
    held = []
    for number, size in enumerate(sizes):
        begin = max(first - start, 0)
        end = min(first + length - start, size)
        if begin < end:
            held.append((number, begin, end))
        start += size
    return held


def my_step(parameters, pieces, optimizer, group):
    pairs = zip(parameters, pieces, strict=True)
    trained = [(p, piece) for p, piece in pairs if p.grad is not None]
    lengths = [piece.numel() for _, piece in trained]
    partial = torch.cat([rows(p.grad, group) for p, _ in trained], dim=1)
    (summed,) = comm.reduce_scatter(partial, group)
    for (_, piece), gradient in zip(trained, summed.split(lengths), strict=True):
        piece.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
    row = torch.cat([piece for _, piece in trained])
    whole = comm.all_gather(row[None], group)
    for (p, _), part in zip(trained, whole.split(lengths, dim=1), strict=True):
        p.data = part.flatten()[: p.numel()].view(p.shape)
        p.grad = None


def my_clip(pieces, max_norm, group):
    gradients = [piece.grad for piece in pieces if piece.grad is not None]
    squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    norm = comm.all_reduce(squares, group).sqrt()
    for gradient in gradients:
        gradient *= torch.clamp(max_norm / norm, max=1.0)
    return norm


def my_gathered_linear(x, piece, shape, group):
    return Gathered.apply(x, piece, shape, group)


def gather(piece, shape, group):
    return comm.all_gather(piece[None], group).flatten()[: shape.numel()].view(shape)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, piece, shape, group):
        ctx.save_for_backward(x, piece)
        ctx.shape = shape
        ctx.group = group
        return functional.linear(x, gather(piece, shape, group))

    @staticmethod
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        weight = gather(piece, ctx.shape, ctx.group)
        (row,) = comm.reduce_scatter(rows(grad.T @ x, ctx.group), ctx.group)
        return grad @ weight, row, None, None


def my_orthogonalize(pieces, orthogonalized, group):
    rows = comm.all_to_all(pieces, group)
    whole = orthogonalized(rows.flatten(0, 1))
    return comm.all_to_all(whole.view_as(rows), group)
