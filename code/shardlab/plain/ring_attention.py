"""Ring attention, plainly: keys and values travel, and no rank ever has them all.

Liu et al. 2023, https://arxiv.org/abs/2310.01889

    model = Transformer(spec)                      # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same numbers on every rank
    order = context_parallel.zig_zag(S, group)     # or contiguous
    context = context_parallel.Context(documents, order, group)
    attend = partial(ring_attention.ring, mask=context.mask, group=group)
    replace(model, attend=attend, locate=lambda _: context.positions)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                          # [B, S + 1], whole
        inputs = batch[:, context.mine]            # [B, S/N]
        targets = batch[:, context.mine + 1]       # [B, S/N]
        optimizer.zero_grad()
        model(inputs, targets).backward()          # the mean loss over these tokens
        data_parallel.average_gradients(model, group, 1 / group.size())
        optimizer.step()

N = ranks, B = batch, S = sequence, H = heads, K = key/value heads, e = head size.
H/K heads of queries share a key: q is [B, K, H/K, S/N, e]. A block has the keys and
the values of one rank: [2, B, K, 1, S/N, e]. Whole: the same on every rank.

The softmax of all keys from that of some: `lse` is the log of the sum of exp(scores),
over the keys seen so far. With the scores of one more block it grows,

    new = logaddexp(lse, scores.logsumexp(-1))

and the output so far, whose softmax had the smaller sum, shrinks by exp(lse - new).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlab import comm


def ring(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, group: comm.Group) -> Tensor:
    """Attend to the keys of all ranks: q is [B, H, S/N, e], k and v are [B, K, S/N, e].

    mask: which keys this rank's queries see, [S/N, S], the keys in the order of ranks.
    """
    q = q / q.shape[-1] ** 0.5
    q = q.unflatten(1, (k.shape[1], -1))           # [B, K, H/K, S/N, e]
    block = torch.stack([k, v]).unsqueeze(3)       # [2, B, K, 1, S/N, e]
    y: Tensor = Ring.apply(q, block, mask, group)  # [B, K, H/K, S/N, e]
    return y.flatten(1, 2)                         # [B, H, S/N, e]


class Ring(Function):
    """Attention while the blocks go round: once in forward, and once more in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, block: Tensor, mask: Tensor, group: comm.Group) -> Tensor:
        y = torch.zeros_like(q)
        lse = q.new_full((), -torch.inf)           # nothing seen yet
        for seen in masks(mask, group):
            k, v = block                           # [B, K, 1, S/N, e]
            scores = masked(q @ k.mT, seen)        # [B, K, H/K, S/N, S/N]
            of_block = scores.logsumexp(-1, keepdim=True)  # [B, K, H/K, S/N, 1]
            new = torch.logaddexp(lse, of_block)
            y = y * (lse - new).exp()              # what was seen before
            p = (scores - new).exp()               # this block's part of the softmax
            y = y + p @ v
            lse = new
            block = pass_on(block, group)          # the last turn brings it home
        ctx.group = group
        ctx.save_for_backward(q, block, mask, y, lse)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, block, mask, y, lse = ctx.saved_tensors
        dq = torch.zeros_like(q)
        gradient = torch.zeros_like(block)         # of the block, and travels with it
        shared = (dy * y).sum(-1, keepdim=True)    # [B, K, H/K, S/N, 1]
        for seen in masks(mask, ctx.group):
            k, v = block
            scores = masked(q @ k.mT, seen)        # [B, K, H/K, S/N, S/N]
            p = (scores - lse).exp()               # this block's part of the softmax
            dp = dy @ v.mT
            ds = p * (dp - shared)                 # gradient of the scores
            dq = dq + ds @ k
            dk = over_heads(ds.mT @ q)             # [B, K, 1, S/N, e]
            dv = over_heads(p.mT @ dy)
            gradient = gradient + torch.stack([dk, dv])  # some of its terms
            both = torch.stack([block, gradient])
            block, gradient = pass_on(both, ctx.group)
        return dq, gradient, None, None            # home again, with all terms


def masks(mask: Tensor, group: comm.Group) -> Iterator[Tensor]:
    """Yield the mask of each block that comes by, [S/N, S/N], this rank's own first."""
    size = group.size()
    by_rank = mask.chunk(size, dim=1)
    for turn in range(size):
        source = group.rank() - turn               # whose block this is
        yield by_rank[source]


def masked(scores: Tensor, seen: Tensor) -> Tensor:
    """Let the softmax ignore what is not seen."""
    return scores.masked_fill(~seen, -torch.inf)


def over_heads(x: Tensor) -> Tensor:
    """Sum over the heads of queries that share a key: [B, K, H/K, ...] -> [B, K, 1, ...]."""
    return x.sum(2, keepdim=True)


def pass_on(x: Tensor, group: comm.Group) -> Tensor:
    """Send x to the next rank, and receive from the one before."""
    rank, size = group.rank(), group.size()
    after = (rank + 1) % size
    before = (rank - 1) % size
    return comm.exchange(x, group, to=after, source=before)
