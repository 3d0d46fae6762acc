"""Solutions of the exercises on tensor parallelism."""

import torch
from torch.nn import functional as F

from shardlab.ranks import comm
from shardlab.ranks.tensor_parallel.conjugates import CopyToRanks, SumOverRanks


class SummedInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return comm.all_reduce(grad, ctx.group), None


def my_copy_to_ranks(x, group):
    return SummedInBackward.apply(x, group)


def my_column_linear(x, weight, bias, group):
    return F.linear(CopyToRanks.apply(x, group), weight, bias)


def my_row_linear(x, weight, bias, group):
    return SumOverRanks.apply(F.linear(x, weight), group) + bias


def my_vocab_parallel_cross_entropy(logits, targets, group):
    size = logits.shape[-1]
    highest = comm.all_reduce(logits.detach().amax(-1), group, "max")
    shifted = logits - highest[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(-1), group)
    mine = targets // size == group.rank()
    chosen = shifted.gather(1, torch.where(mine, targets % size, 0)[:, None])[:, 0] * mine
    return total.log() - SumOverRanks.apply(chosen, group)
