"""Ring attention, plainly: keys and values travel, and no rank ever has them all.

Liu et al. 2023, https://arxiv.org/abs/2310.01889

    model = Transformer(spec)                      # other numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same on every rank
    context = context_parallel.Context(documents, group, zig_zag)
    attend = partial(ring_attention.ring, mask=context.mask, group=group)
    replace(model, attend=attend, locate=lambda _: context.positions)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                          # [B, S + 1], on every rank
        inputs, targets = batch[:, context.mine], batch[:, context.mine + 1]
        optimizer.zero_grad()
        model(inputs, targets).backward()          # mean loss over [B, s] tokens
        data_parallel.average_gradients(model, group, 1 / group.size())
        optimizer.step()

N = ranks, B = batch, S = sequence, s = S/N, H = heads, K = key/value heads, E = head
size. "Partial": a part of a sum over ranks. All other tensors are whole.

Scores a and b of different keys have the softmax sums exp(a).sum() and exp(b).sum().
The log of each is its log-sum-exp. With lse = logaddexp(lse_a, lse_b) the softmax of
both is exp(a - lse) and exp(b - lse): the first output needs the factor
exp(lse_a - lse), the second exp(lse_b - lse).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlab import comm


def ring(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, group: comm.Group) -> Tensor:
    """Attend to the keys of all ranks: q is [B, H, s, E], k and v are [B, K, s, E].

    mask: which keys this rank's queries see, [s, S], the keys in order of ranks.
    """
    q = q.unflatten(1, (k.shape[1], -1)) / q.shape[-1] ** 0.5  # [B, K, H/K, s, E]
    block = torch.stack([k, v]).unsqueeze(3)          # [2, B, K, 1, s, E]
    y: Tensor = Ring.apply(q, block, mask, group)     # [B, K, H/K, s, E]
    return y.flatten(1, 2)                            # [B, H, s, E]


def blocks_seen(mask: Tensor, group: comm.Group) -> list[Tensor]:
    """List the masks of the blocks as they come by, each [s, s], its own first."""
    by_rank = mask.chunk(group.size(), dim=1)
    return [by_rank[group.rank() - turn] for turn in range(group.size())]


def pass_on(x: Tensor, group: comm.Group) -> Tensor:
    """Send x to the next rank, and receive from the one before."""
    rank, size = group.rank(), group.size()
    return comm.exchange(x, group, to=(rank + 1) % size, source=(rank - 1) % size)


class Ring(Function):
    """One turn of the ring in forward, a second one in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, block: Tensor, mask: Tensor, group: Any) -> Any:
        y, lse = torch.zeros_like(q), q.new_full((), -torch.inf)
        for seen in blocks_seen(mask, group):
            k, v = block                              # [B, K, 1, s, E]
            scores = (q @ k.mT).masked_fill(~seen, -torch.inf)
            before = lse                              # [B, K, H/K, s, 1]
            lse = torch.logaddexp(before, scores.logsumexp(-1, keepdim=True))
            y = y * (before - lse).exp() + (scores - lse).exp() @ v
            block = pass_on(block, group)             # at last it comes home
        ctx.group = group
        ctx.save_for_backward(q, block, mask, y, lse)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, block, mask, y, lse = ctx.saved_tensors
        dq = torch.zeros_like(q)
        gradient = torch.zeros_like(block)            # travels too, partial
        for seen in blocks_seen(mask, ctx.group):
            k, v = block
            p = (q @ k.mT - lse).masked_fill(~seen, -torch.inf).exp()  # softmax
            ds = p * (dy @ v.mT - (dy * y).sum(-1, keepdim=True))
            dq += ds @ k
            dk, dv = ds.mT @ q, p.mT @ dy             # [B, K, H/K, s, E]
            gradient += torch.stack([dk, dv]).sum(3, keepdim=True)
            block, gradient = pass_on(torch.stack([block, gradient]), ctx.group)
        return dq, gradient, None, None               # home again, and whole
