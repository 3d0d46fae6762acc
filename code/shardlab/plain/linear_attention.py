"""Context parallelism without softmax, plainly: a state passes from rank to rank.

Gated delta rule: Yang et al. 2024, https://arxiv.org/abs/2412.06464

    model = Transformer(spec)                      # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same numbers on every rank
    order = context_parallel.contiguous(S, group)  # a state reads tokens in their order
    context = context_parallel.Context(documents, order, group)
    keep = 0.9 * (context.positions > 0)           # [S/N]: a document begins with nothing
    attend = partial(linear_attention.attend, keep=keep, write=1 - keep, group=group)
    replace(model, attend=attend, locate=lambda _: context.positions)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                          # [B, S + 1], the same on every rank
        inputs = batch[:, context.mine]            # [B, S/N]
        targets = batch[:, context.mine + 1]       # [B, S/N]
        optimizer.zero_grad()
        model(inputs, targets).backward()          # the mean loss over these tokens
        data_parallel.average_gradients(model, group, 1 / group.size())
        optimizer.step()

N = ranks, B = batch, S = sequence, H = heads, K = key/value heads, e = head size.

The state of a head is a matrix, [e, e]: multiplied by a key, it says the value stored
under it. A token keeps a part of the state, and writes its value under its key,

    state = keep * state
    state = state + write * k (v - k state)        # k: a column before, a row in it

which is affine in the state. So all tokens of a rank together do no more than

    state = m state + b                            # m, b: [e, e], the rank's map

and two such maps after each other are one map again. However long the text is, a rank
sends its map, 2 e e numbers for a head, and learns from the maps of those before it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import normalize

from shardlab import comm


def attend(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, write: Tensor, group: comm.Group
) -> Tensor:
    """Read a state of the tokens so far, with each query: [B, H, S/N, e].

    q is [B, H, S/N, e]; k, v are [B, K, S/N, e]; keep and write, 0 to 1, have any shape
    that expands to [B, H, S/N].
    """
    heads = q.shape[1] // k.shape[1]               # of queries that share a key
    k = normalize(k, dim=-1)
    k = k.repeat_interleave(heads, dim=1)          # [B, H, S/N, e]
    v = v.repeat_interleave(heads, dim=1)
    none = torch.zeros_like(v)
    values = torch.stack([none, v])                # [2, B, H, S/N, e]: for m, for b
    keep = keep.to(q).expand(q.shape[:3])          # [B, H, S/N]
    write = write.to(q).expand(q.shape[:3])
    state = unchanged(q)                           # [2, B, H, e, e]: m and b so far
    outputs = []
    for t in range(q.shape[2]):
        token = slice(t, t + 1)
        key = k[:, :, token]                       # [B, H, 1, e]: a row
        state = keep[:, :, token, None] * state
        error = values[:, :, :, token] - key @ state
        gain = write[:, :, token, None] * key
        state = state + gain.mT @ error
        outputs.append(q[:, :, token] @ state)
    of_before, new = torch.cat(outputs, dim=-2)    # [B, H, S/N, e] each
    y: Tensor = of_before @ state_before(state, group) + new
    return y


def unchanged(q: Tensor) -> Tensor:
    """Make the map that changes no state, m = 1 and b = 0: [2, B, H, e, e]."""
    one = torch.eye(q.shape[-1]).to(q)
    m = one.expand(*q.shape[:2], -1, -1)
    b = torch.zeros_like(m)
    return torch.stack([m, b])


def then(first: Tensor, second: Tensor) -> Tensor:
    """Make one map of two, the second of which is applied to what the first has left."""
    m, b = second
    new = torch.stack([torch.zeros_like(b), b])
    both: Tensor = m @ first + new
    return both


def state_before(state: Tensor, group: comm.Group) -> Tensor:
    """Find the state with which this rank begins, [B, H, e, e], by doubling.

    After a round a rank has the map of twice as many ranks, its own the last of them.
    """
    start = unchanged(state[0])
    distance = 1
    while distance < group.size():
        earlier = Shift.apply(state, start, group, distance)
        state = then(earlier, state)
        distance = 2 * distance
    before = Shift.apply(state, start, group, 1)   # of all ranks before this one
    b: Tensor = before[1]                          # the text begins with a state of 0
    return b


def with_tokens_before(x: Tensor, count: int, group: comm.Group) -> Tensor:
    """Put the last `count` tokens of the rank before in front of this rank's own.

    A short convolution needs no more, nor do the keys of a sliding window. Rank 0 gets zeros.
    """
    if count > x.shape[-2]:
        raise ValueError(f"a rank has {x.shape[-2]} tokens, and {count} are needed before it")
    last = x[..., x.shape[-2] - count :, :]
    before = Shift.apply(last, torch.zeros_like(last), group, 1)
    return torch.cat([before, x], dim=-2)


class Shift(Function):
    """Take what the rank `distance` before this one has; the first ranks take `start`.

    Backward takes the gradient of the rank as far after this one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: Tensor, group: comm.Group, distance: int) -> Tensor:
        before, after = neighbours(distance, group)
        y = comm.exchange(x, group, to=after, source=before)
        ctx.group, ctx.distance = group, distance
        is_before = before < group.rank()
        return y if is_before else start.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        before, after = neighbours(ctx.distance, ctx.group)
        dx = comm.exchange(gradient, ctx.group, to=before, source=after)
        if after <= ctx.group.rank():              # what the last ranks sent went nowhere
            dx = torch.zeros_like(dx)
        return dx, None, None, None


def neighbours(distance: int, group: comm.Group) -> tuple[int, int]:
    """Find the ranks `distance` before and after this one, round the ends."""
    rank, size = group.rank(), group.size()
    before = (rank - distance) % size
    after = (rank + distance) % size
    return before, after
