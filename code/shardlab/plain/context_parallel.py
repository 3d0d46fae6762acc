"""Context parallelism, plainly: every rank has the whole model, and a part of each sequence.

Gathered keys: Llama 3 (https://arxiv.org/abs/2407.21783), section 3.3.2.
Ulysses: https://arxiv.org/abs/2309.14509. The ring: `plain.ring_attention`.

    model = Transformer(spec)                      # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same numbers on every rank
    order = context_parallel.zig_zag(S, group)     # or contiguous
    context = context_parallel.Context(documents, order, group)
    attend = context.gathered                      # or context.ulysses
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
Queries are [B, H, S/N, e], keys and values [B, K, S/N, e], each of this rank's tokens.
Whole: the same on every rank.

Eight tokens on two ranks. A query sees its own token and those before it, so the
first ranks would have little to compute; in a zig-zag all have the same:

                  rank 0     rank 1     scores of each rank
    contiguous    0 1 2 3    4 5 6 7    1+2+3+4 = 10    5+6+7+8 = 26
    zig-zag       0 1 6 7    2 3 4 5    1+2+7+8 = 18    3+4+5+6 = 18
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention

from shardlab import comm


def in_parts(length: int, count: int) -> Tensor:
    """Number the tokens of a sequence, in equal parts: [count, length/count]."""
    if length % count:
        raise ValueError(f"{length} tokens do not split into {count} parts; pad them")
    return torch.arange(length).view(count, -1)


def contiguous(length: int, group: comm.Group) -> Tensor:
    """List the tokens in the order of ranks, [S]: one part for each rank."""
    return in_parts(length, group.size()).flatten()


def zig_zag(length: int, group: comm.Group) -> Tensor:
    """List the tokens in the order of ranks, [S]: two parts for each rank."""
    first, last = in_parts(length, 2 * group.size()).chunk(2)  # [N, S/2N] each
    last = last.flip(0)                            # rank 0 gets the end
    return torch.cat([first, last], dim=1).flatten()


class Context:
    """The tokens that this rank holds, and how they attend to those before them."""

    def __init__(self, documents: Tensor, order: Tensor, group: comm.Group):
        """Take the number of each token's document, ascending, and the order: [S] each."""

        def mine(x: Tensor) -> Tensor:             # [S, ...] -> [S/N, ...]
            return x.chunk(group.size())[group.rank()]

        order = order.to(documents.device)
        starts = torch.searchsorted(documents, documents)
        starts = starts[order]                     # [S]: first token of the document
        in_document = starts[:, None] <= order     # [S, S]: queries, keys
        not_later = order <= order[:, None]        # [S, S]
        self.group = group
        self.seen = in_document & not_later        # [S, S]
        self.mask = mine(self.seen)                # [S/N, S]: of this rank's queries
        self.mine = mine(order)                    # [S/N]: this rank's tokens
        self.positions = self.mine - mine(starts)  # [S/N]: within their documents

    def gathered(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to the keys of all ranks, gathered: [B, H, S/N, e]."""
        k = GatherParts.apply(k, self.group)         # [B, K, S, e], whole
        v = GatherParts.apply(v, self.group)         # [B, K, S, e], whole
        return scaled_dot_product_attention(q, k, v, self.mask, enable_gqa=True)

    def ulysses(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to whole sequences, with some heads on each rank: [B, H, S/N, e].

        N must divide H and K.
        """
        q = AllToAll.apply(q, self.group, 1, 2)    # [B, H/N, S, e]
        k = AllToAll.apply(k, self.group, 1, 2)    # [B, K/N, S, e]
        v = AllToAll.apply(v, self.group, 1, 2)    # [B, K/N, S, e]
        y = scaled_dot_product_attention(q, k, v, self.seen, enable_gqa=True)
        whole: Tensor = AllToAll.apply(y, self.group, 2, 1)  # [B, H, S/N, e]
        return whole


class GatherParts(Function):
    """Join the ranks' parts of a sequence. Backward sums, and keeps this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group) -> Tensor:
        ctx.group = group
        parts = comm.all_gather(x[None], group)    # [N, B, K, S/N, e]
        return torch.cat([*parts], dim=2)          # [B, K, S, e], whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        size = ctx.group.size()
        partial = torch.stack(gradient.chunk(size, dim=2))  # [N, B, K, S/N, e]
        mine = comm.reduce_scatter(partial, ctx.group)  # [1, B, K, S/N, e]
        return mine[0], None


class AllToAll(Function):
    """Split a tensor along one dim, send a part to each rank, and join what arrives.

    Backward is the way back: it splits where forward joined.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: comm.Group, split: int, join: int) -> Tensor:
        ctx.way_back = group, join, split
        parts = torch.stack(x.chunk(group.size(), split))  # [N, ...], to each rank
        parts = comm.all_to_all(parts, group)      # [N, ...], from each rank
        return torch.cat([*parts], join)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = AllToAll.apply(gradient, *ctx.way_back)
        return gradient, None, None, None
