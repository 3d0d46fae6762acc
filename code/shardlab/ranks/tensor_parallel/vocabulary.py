"""Embedding and cross-entropy with the vocabulary cut: no rank ever holds all logits.

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). Gathering the logits would take V
numbers for every token. The loss needs three numbers of the other ranks: the largest logit, the sum
of the exponentials, and the logit of the target.

A vocabulary that does not divide is padded at its end. Megatron-LM pads further, to a multiple of
128 on each rank, because such matrices are faster (section 5.1: 50,257 tokens become 51,200). Here
padding has no part in the loss and gets no gradient, so that the cut model stays equal to the uncut
one.

Shapes: B sequences of S tokens, h numbers a token; a rank holds V/tp rows of the padded vocabulary,
and token i is on rank i // (V/tp).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from shardlab import comm

IGNORED = -100  # a target that does not count, as in torch's cross_entropy


class VocabularyEmbedding(nn.Module):
    """This rank's rows of an embedding: it looks up its own tokens, and the sum over ranks has all.

    leave: adds up the partial sums, as `SumOverRanks` or `sequence.ScatterSequence`.
    """

    def __init__(
        self, plain: nn.Embedding, vocab_size: int, group: comm.Group, leave: type[Function]
    ):
        super().__init__()
        self.weight = plain.weight
        self.vocab_size = vocab_size
        self.group = group
        self.leave = leave

    def forward(self, tokens: Tensor) -> Tensor:             # [B, S]
        check(tokens, self.vocab_size)
        row, is_local = find(tokens, len(self.weight), self.group)
        x = F.embedding(row, self.weight)                    # [B, S, h]
        x = x * is_local[..., None]                          # zero for other ranks' tokens
        y: Tensor = self.leave.apply(x, self.group)          # [B, S, h] or [B, S/tp, h]
        return y


class CrossEntropy(Function):
    """-log of the target's probability for every token; 0 for IGNORED."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, vocab_size: int, group: comm.Group
    ) -> Tensor:                               # [B, S, V/tp] and [B, S] -> [B, S]
        size = logits.shape[-1]
        first = group.rank() * size
        real = min(max(vocab_size - first, 0), size)         # columns before padding
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        lowest = exact.new_full(targets.shape, -torch.inf)
        highest = exact[..., :real].amax(-1) if real else lowest
        highest = comm.all_reduce(highest, group, "max")     # [B, S]
        shifted = exact - highest[..., None]                 # [B, S, V/tp], at most 0
        shifted[..., real:] = -torch.inf
        column, is_local = find(targets, size, group)        # [B, S]
        chosen = shifted.gather(-1, column[..., None])[..., 0]
        chosen = torch.where(is_local, chosen, 0.0)          # [B, S], partial
        probability = shifted.exp_()
        partial = torch.stack([probability.sum(-1), chosen])  # [2, B, S]
        total, chosen = comm.all_reduce(partial, group)      # [B, S] each
        probability /= total[..., None]                      # [B, S, V/tp]
        counts = targets != IGNORED
        ctx.save_for_backward(probability, column, is_local, counts)
        ctx.dtype = logits.dtype
        return torch.where(counts, total.log() - chosen, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        probability, column, is_local, counts = ctx.saved_tensors
        grad = (grad * counts)[..., None]                    # [B, S, 1]
        dlogits = probability * grad                         # [B, S, V/tp]
        dlogits.scatter_add_(-1, column[..., None], -grad * is_local[..., None])
        return dlogits.to(ctx.dtype), None, None, None


def cross_entropy(
    logits: Tensor, targets: Tensor, vocab_size: int, group: comm.Group
) -> Tensor:
    """Average the loss over tokens that count: [B, S, V/tp] and [B, S] -> [], on every rank.

    The unit is nats. vocab_size: the number of tokens without padding. Errors: ValueError for a
    target beyond it.
    """
    counts = targets != IGNORED
    check(targets[counts], vocab_size)
    losses: Tensor = CrossEntropy.apply(logits, targets, vocab_size, group)
    return losses.sum() / counts.sum()


def find(tokens: Tensor, size: int, group: comm.Group) -> tuple[Tensor, Tensor]:
    """Return each token's row among this rank's `size`, and whether it has one; row 0 if not."""
    rank = group.rank()
    is_local = tokens.div(size, rounding_mode="floor") == rank
    return torch.where(is_local, tokens - rank * size, 0), is_local


def check(tokens: Tensor, vocab_size: int) -> None:
    """Refuse tokens that no rank has, on the CPU only: to look at them one would wait for a GPU."""
    if tokens.device.type != "cpu" or not tokens.numel():
        return
    if not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise ValueError(
            f"tokens from {tokens.min()} to {tokens.max()} are not all in the vocabulary of "
            f"{vocab_size}; use 0 to {vocab_size - 1}"
        )
