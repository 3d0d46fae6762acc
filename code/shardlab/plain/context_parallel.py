"""Context parallelism, plainly: ranks have the whole model, a part of each sequence.

Gathered keys: Llama 3 (https://arxiv.org/abs/2407.21783), section 3.3.2.
Ulysses: https://arxiv.org/abs/2309.14509. The ring: `plain.ring_attention`.

    model = Transformer(spec)                      # other numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same on every rank
    context = context_parallel.Context(documents, group, zig_zag)
    attend = context.gathered                      # or context.ulysses
    replace(model, attend=attend, locate=lambda _: context.positions)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                          # [B, S + 1], on every rank
        inputs, targets = batch[:, context.mine], batch[:, context.mine + 1]
        optimizer.zero_grad()
        model(inputs, targets).backward()          # mean loss over [B, S/N] tokens
        data_parallel.average_gradients(model, group, 1 / group.size())
        optimizer.step()

N = ranks, B = batch, S = sequence, H = heads, K = key/value heads, E = head size.
No tensor is partial, except gradients between two ranks.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention

from shardlab import comm


class Context:
    """The tokens that this rank holds, and how they attend to those before them.

    documents: the number of each token's document, [S], ascending. Queries are
    [B, H, S/N, E], keys and values [B, K, S/N, E]. For `ulysses` N divides H and K.
    """

    def __init__(self, documents: Tensor, group: comm.Group, zig_zag: bool):
        self.group, size, length = group, group.size(), len(documents)
        if length % (2 * size):
            advice = f"pad to a multiple of {2 * size}"
            raise ValueError(f"{length} tokens on {size} ranks: {advice}")
        parts = torch.arange(length, device=documents.device).view(2 * size, -1)
        pairs = [(n, -1 - n) if zig_zag else (2 * n, 2 * n + 1) for n in range(size)]
        order = torch.cat([parts[list(pair)].flatten() for pair in pairs])  # [S]
        first = torch.searchsorted(documents, documents[order])  # [S], of a text
        self.seen = (first[:, None] <= order) & (order <= order[:, None])  # [S, S]
        self.mask = self.seen.chunk(size)[group.rank()]  # [S/N, S], mine
        self.mine = order.chunk(size)[group.rank()]   # [S/N]
        self.positions = self.mine - first.chunk(size)[group.rank()]  # [S/N]

    def gathered(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Gather the keys and values of all ranks."""
        k = Gather.apply(k, self.group)               # [B, K, S, E]
        v = Gather.apply(v, self.group)               # [B, K, S, E]
        return scaled_dot_product_attention(q, k, v, self.mask, enable_gqa=True)

    def ulysses(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Exchange a part of every head for the whole of some heads, and back."""
        q = Exchange.apply(q, self.group, 1, 2)       # [B, H/N, S, E]
        k = Exchange.apply(k, self.group, 1, 2)       # [B, K/N, S, E]
        v = Exchange.apply(v, self.group, 1, 2)       # [B, K/N, S, E]
        some = scaled_dot_product_attention(q, k, v, self.seen, enable_gqa=True)
        y: Tensor = Exchange.apply(some, self.group, 2, 1)  # [B, H, S/N, E]
        return y


class Gather(Function):
    """Join the ranks' parts of sequences; in backward, sum and cut gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        parts = comm.all_gather(x[None], group)       # [N, B, K, S/N, E]
        return torch.cat([*parts], dim=2)             # [B, K, S, E]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parts = torch.stack(gradient.chunk(ctx.group.size(), dim=2))  # partial
        (mine,) = comm.reduce_scatter(parts, ctx.group)  # [B, K, S/N, E], whole
        return mine, None


class Exchange(Function):
    """Cut a tensor along one dim, join what arrives along another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, cut: int, join: int) -> Any:
        ctx.way_back = group, join, cut
        parts = torch.stack(x.chunk(group.size(), cut))  # [N, ...], for each rank
        return torch.cat([*comm.all_to_all(parts, group)], join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Exchange.apply(gradient, *ctx.way_back), None, None, None
