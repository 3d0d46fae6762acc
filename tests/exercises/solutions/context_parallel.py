"""Solutions of the exercises on context parallelism."""

import torch

from shardlab import comm
from shardlab.plain.context_parallel import AllToAll


def my_merge(y_a, lse_a, y_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    return y_a * (lse_a - lse).exp() + y_b * (lse_b - lse).exp(), lse


def my_place(length, rank, world_size, zig_zag):
    share = length // world_size
    if zig_zag:
        part = share // 2
        front = range(rank * part, (rank + 1) * part)
        positions = [*front, *(length - 1 - position for position in reversed(front))]
    else:
        positions = list(range(rank * share, (rank + 1) * share))
    return positions, sum(position + 1 for position in positions)


def pass_on(x, group):
    rank, size = group.rank(), group.size()
    return comm.exchange(x, group, to=(rank + 1) % size, source=(rank - 1) % size)


def blocks_of(mask, group):
    """The columns of the mask of each block that comes by: first this rank's own."""
    by_rank = mask.chunk(group.size(), dim=1)
    return [by_rank[group.rank() - turn] for turn in range(group.size())]


def my_ring_forward(q, k, v, mask, group):
    y = torch.zeros_like(q)
    lse = q.new_full((*q.shape[:2], 1), -torch.inf)
    block = torch.stack([k, v])
    for turn, seen in enumerate(blocks_of(mask, group)):
        if turn:
            block = pass_on(block, group)
        scores = (q @ block[0].mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        before = lse
        lse = torch.logaddexp(before, scores.logsumexp(-1, keepdim=True))
        y = y * (before - lse).exp() + (scores - lse).exp() @ block[1]
    return y, lse


def my_ring_backward(dy, q, k, v, y, lse, mask, group):
    root = q.shape[-1] ** 0.5
    delta = (dy * y).sum(-1, keepdim=True)
    dq = torch.zeros_like(q)
    block = torch.stack([k, v])
    coming = torch.zeros_like(block)
    for turn, seen in enumerate(blocks_of(mask, group)):
        if turn:
            block = pass_on(block, group)
        p = (q @ block[0].mT / root - lse).masked_fill(~seen, -torch.inf).exp()
        ds = p * (dy @ block[1].mT - delta) / root
        dq = dq + ds @ block[0]
        gradient = torch.stack([ds.mT @ q, p.mT @ dy])
        if turn == 0:
            home = gradient
        else:
            coming = pass_on(coming + gradient, group)
    return dq, *(home + coming)


def my_exchange_heads(q, k, v, attend, group):
    size = group.size()
    parts = zip(*(x.chunk(size) for x in (q, k, v)), strict=True)
    packed = torch.cat([x for part in parts for x in part])
    arrived = AllToAll.apply(packed, group, 0, 1)
    y = attend(*arrived.split([len(x) // size for x in (q, k, v)]))
    return AllToAll.apply(y, group, 1, 0)


def after(first, second):
    """Join two maps: the second is applied to what the first has left."""
    return second[0] @ first[0], second[0] @ first[1] + second[1]


def my_compose(k, v, keep, write, later):
    m = torch.eye(k.shape[-1]).to(k)
    b = torch.zeros_like(m)
    for key, value, kept, written in zip(k, v, keep, write, strict=True):
        m, b = kept * m, kept * b
        m = m - written * torch.outer(key, key @ m)
        b = b + written * torch.outer(key, value - key @ b)
    return after((m, b), later)


def my_scan(m, b, group):
    rank, size = group.rank(), group.size()
    before = torch.stack([torch.eye(len(m)).to(m), torch.zeros_like(b)])  # of the ranks before this one
    up_to = torch.stack([m, b])  # with this one
    distance = 1
    while distance < size:
        ways = {"to": (rank + distance) % size, "source": (rank - distance) % size}
        earlier = comm.exchange(up_to, group, **ways)
        if rank >= distance:
            before = torch.stack(after(earlier, before))
            up_to = torch.stack(after(earlier, up_to))
        distance *= 2
    return before[1]
