"""Solutions of the exercises on tensor parallelism."""

import torch
from torch.nn import functional

from shardlab import comm
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks, find


class Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return torch.cat([*comm.all_gather(x[None], group)], dim=-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.group.size(), dim=-1)[ctx.group.rank()], None


def my_gather_from_ranks(x, group):
    return Joined.apply(x, group)


def my_columns(linears, group, x):
    x = CopyToRanks.apply(x, group)
    return [functional.linear(x, linear.weight, linear.bias) for linear in linears]


def my_rows(linears, group, xs):
    pairs = zip(linears, xs, strict=True)
    y = SumOverRanks.apply(sum(functional.linear(x, linear.weight) for linear, x in pairs), group)
    return sum((linear.bias for linear in linears if linear.bias is not None), y)


def my_smoothed_loss(logits, targets, smoothing, group):
    top = comm.all_reduce(logits.detach().amax(-1), group, "max")
    logits = logits - top[..., None]
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    row, here = find(targets, logits.shape[-1], group)
    chosen = logits.gather(-1, row[..., None])[..., 0] * here
    words = logits.shape[-1] * group.size()
    wanted = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / words
    return total.log() - SumOverRanks.apply(wanted, group)
