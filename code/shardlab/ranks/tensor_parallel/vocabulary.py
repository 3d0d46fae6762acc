"""Embedding and cross-entropy with the vocabulary cut: no rank ever holds all logits.

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). To gather the logits would take V numbers for every
token; what the loss needs of the other ranks is three: the largest logit, the sum of the exponentials, the logit of
the target.

A vocabulary that does not divide is padded, as is the convention; Megatron-LM pads further, to a multiple of 128 on
each rank, because such matrices are faster (section 5.1: 50,257 tokens become 51,200). Padding has no part in the loss
and gets no gradient, so that the cut model stays equal to the uncut one. It is at the end: with `size` rows on each
rank, token i stands on rank i // size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .. import comm
from . import conjugates

IGNORED = -100  # a target that does not count, as in torch's cross_entropy


class VocabularyEmbedding(nn.Module):
    """Some rows of the table: a rank looks up its own tokens, and the sum over ranks has them all.

    leave: what turns the ranks' partial sums into what follows, `conjugates.SumOverRanks` or its kin.
    """

    def __init__(self, plain: nn.Embedding, vocab_size: int, group: comm.Group, leave: type[Function]):
        super().__init__()
        self.weight, self.vocab_size, self.group, self.leave = plain.weight, vocab_size, group, leave

    def forward(self, tokens: Tensor) -> Tensor:                            # [B, S] -> [B, S, D]
        check(tokens, self.vocab_size)
        row, mine = find(tokens, len(self.weight), self.group)              # [B, S]
        x = F.embedding(row, self.weight) * mine[..., None]                 # [B, S, D], zero for others' tokens
        y: Tensor = self.leave.apply(x, self.group)
        return y


class CrossEntropy(Function):
    """-log of the target's probability, for every token: [B, S, V/tp] and [B, S] -> [B, S]; 0 for IGNORED."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, group: comm.Group) -> Tensor:
        size = logits.shape[-1]
        real = min(max(vocab_size - group.rank() * size, 0), size)          # columns before the padding
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        highest = exact[..., :real].amax(-1) if real else exact.new_full(targets.shape, -torch.inf)
        shifted = exact - comm.all_reduce(highest, group, "max")[..., None]  # [B, S, V/tp], so that exp stays finite
        shifted[..., real:] = -torch.inf
        column, mine = find(targets, size, group)                           # [B, S]
        chosen = shifted.gather(-1, column[..., None])[..., 0]
        chosen = torch.where(mine, chosen, 0.0)                             # [B, S], on the rank that has it
        probability = shifted.exp_()
        total, chosen = comm.all_reduce(torch.stack([probability.sum(-1), chosen]), group)
        probability /= total[..., None]
        ctx.save_for_backward(probability, column, mine, targets != IGNORED)
        ctx.dtype = logits.dtype
        return torch.where(targets != IGNORED, total.log() - chosen, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # [B, S] -> [B, S, V/tp]
        probability, column, mine, counted = ctx.saved_tensors
        grad = (grad * counted)[..., None]
        grads = probability * grad
        grads.scatter_add_(-1, column[..., None], -grad * mine[..., None])
        return grads.to(ctx.dtype), None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, vocab_size: int, group: comm.Group) -> Tensor:
    """Mean cross-entropy in nats over the tokens that count, the same on every rank: [B, S, V/tp] and [B, S] -> [].

    vocab_size: tokens there are, without padding. Errors: ValueError for a target beyond them.
    """
    counted = targets != IGNORED
    check(targets[counted], vocab_size)
    losses: Tensor = CrossEntropy.apply(logits, targets, vocab_size, group)
    return losses.sum() / counted.sum()


def gather_logits(logits: Tensor, vocab_size: int, group: comm.Group) -> Tensor:
    """All logits on every rank, to generate text with: [B, S, V/tp] -> [B, S, V]."""
    whole: Tensor = conjugates.GatherFromRanks.apply(logits, group, -1)
    return whole[..., :vocab_size]


def find(tokens: Tensor, size: int, group: comm.Group) -> tuple[Tensor, Tensor]:
    """Where each token stands among the `size` of this rank, and whether it does; 0 where it does not."""
    mine = tokens.div(size, rounding_mode="floor") == group.rank()
    return torch.where(mine, tokens - group.rank() * size, 0), mine


def check(tokens: Tensor, vocab_size: int) -> None:
    """ValueError for a token that no rank has. Only on the CPU: to look, one would have to wait for a GPU."""
    if tokens.device.type == "cpu" and tokens.numel() and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise ValueError(
            f"tokens from {tokens.min()} to {tokens.max()} are not all among the {vocab_size} of the vocabulary; "
            f"use 0 to {vocab_size - 1}"
        )
