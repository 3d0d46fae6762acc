"""Solutions of the exercises on expert parallelism."""

import torch
from torch.nn.functional import one_hot

from shardlab import comm
from shardlab.plain.expert_parallel import AllToAllRows


def my_route(scores, per_token, before, slots):
    num_experts = scores.shape[1]
    chosen = scores.argsort(dim=-1, descending=True, stable=True)[:, :per_token]
    shares = scores.softmax(-1)
    weights = shares.gather(1, chosen) if before else scores.gather(1, chosen).softmax(-1)
    queue = one_hot(chosen.T.flatten(), num_experts)
    places = (queue.cumsum(0) * queue).sum(1).view(per_token, -1).T
    full = places > slots
    return chosen.masked_fill(full, num_experts), weights.masked_fill(full, 0)


def my_dispatch(x, chosen, weights, num_experts, group):
    here = num_experts // group.size()
    dense = weights.new_zeros(len(x), num_experts + 1).scatter(1, chosen, weights)[:, :-1]
    by_rank = dense.view(len(x), group.size(), here)
    rank, token = (by_rank != 0).any(-1).T.nonzero(as_tuple=True)
    sends = rank.bincount(minlength=group.size())
    receives = comm.all_to_all(sends, group).tolist()
    packed = torch.cat([x[token], by_rank[token, rank]], dim=1)
    arrived = AllToAllRows.apply(packed, group, sends.tolist(), receives)
    return arrived.split([x.shape[1], here], dim=1)


def my_combine(y, shares, tokens, num_tokens, sends, receives, group):
    expert, row = shares.T.nonzero(as_tuple=True)
    weighted = y * shares[row, expert, None]
    rows = y.new_zeros(len(shares), y.shape[1]).index_add(0, row, weighted)
    rows = AllToAllRows.apply(rows, group, sends, receives)
    return y.new_zeros(num_tokens, y.shape[1]).index_add(0, tokens, rows)


def flattened(parameters):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([gradient.flatten() for gradient in gradients])


def set_gradients(parameters, flat):
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view_as(p)


def my_average(shared, experts, num_tokens, ep, group):
    shared = [p for p in shared if p.requires_grad]
    experts = [p for p in experts if p.requires_grad]
    mine = flattened(shared)
    summed = comm.all_reduce(torch.cat([mine, mine.new_tensor([num_tokens])]), group)
    total = summed[-1]
    set_gradients(shared, summed[:-1] / total)
    set_gradients(experts, comm.all_reduce(flattened(experts), comm.across(group, ep)) / total)


def my_balance(scores, chosen, group):
    num_experts = scores.shape[1]
    counts = chosen.flatten().bincount(minlength=num_experts).to(scores.dtype)
    own = scores.softmax(-1).sum(0)
    counts, total = comm.all_reduce(torch.stack([counts, own.detach()]), group)
    sums = own + (total - own).detach()
    num_tokens = counts.sum() / chosen.shape[1]
    return num_experts * (counts / counts.sum() * sums / num_tokens).sum()


def with_copies(loads, num_ranks, spare):
    """The experts, and after them their copies in the order in which slots are given out."""
    held = list(range(len(loads)))
    for _ in range(num_ranks * spare):
        free = [expert for expert in range(len(loads)) if held.count(expert) < num_ranks]
        held.append(max(free, key=lambda expert: loads[expert] / held.count(expert)))
    return held


def dealt(loads, num_ranks, waiting):
    """Lists of experts, from copies that are dealt in rounds by the load of each."""
    tokens = [load / max(1, waiting.count(expert)) for expert, load in enumerate(loads)]
    waiting = sorted(waiting, key=lambda expert: (-tokens[expert], expert))
    placement = [[] for _ in range(num_ranks)]
    while waiting:
        now, waiting = waiting[:num_ranks], waiting[num_ranks:]
        ranks = set(range(num_ranks))
        for expert in now:
            free = [rank for rank in ranks if expert not in placement[rank]]
            rank = min(free, key=lambda rank: sum(tokens[each] for each in placement[rank]))
            placement[rank].append(expert)
            ranks.remove(rank)
    return placement


def my_spare(loads, num_ranks, spare):
    return dealt(loads, num_ranks, with_copies(loads, num_ranks, spare))
