"""Expert parallelism, plainly: ranks have different experts, and tokens travel to theirs.

Lepikhin et al. 2020, GShard, https://arxiv.org/abs/2006.16668. The engine,
`ranks.expert_parallel`, sends a token once to each rank, or to each node.

    model = Transformer(spec)                      # other numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same on every rank
    experts = expert_parallel.Experts(model, group, ep)  # E/P of every layer
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                          # [B, S + 1] tokens of all ranks
        mine = data_parallel.shard(batch, group)   # [B/N, S + 1], this rank's own
        optimizer.zero_grad()
        share = len(mine) / len(batch)             # 1/N, if N divides B
        loss = share * model(mine[:, :-1], mine[:, 1:])  # its part of the mean
        loss.backward()
        experts.sum_gradients(model)
        optimizer.step()
        rebalance(model)                           # the biases, if there are any

N = ranks, P = ranks that hold all experts between them, T = tokens of this rank, D =
hidden size, E = experts, k = those that a token chooses. A token is a row for each
expert that it chose: T*k rows, R without those that found no slot. This rank
receives M rows. No tensor is partial, except gradients until they are summed.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from shardlab import comm


class Experts:
    """The experts of this rank: E/P of every mixture. Neighbours hold the others."""

    def __init__(self, model: Any, group: comm.Group, ep: int):
        self.group = group
        self.around = comm.split(group, ep)       # P ranks, all experts
        self.same = comm.across(group, ep)        # N/P ranks, the same experts
        for mixture in model.modules():
            if not hasattr(mixture, "experts"):
                continue
            count = len(mixture.experts)
            if count % ep:
                raise ValueError(f"{count} experts on {ep} ranks; use a divisor of {count}")
            for number in range(count):
                if number // (count // ep) != self.around.rank():
                    del mixture.experts[str(number)]
            mixture.group = group                 # balance the load of all ranks
            mixture.compute = self.compute

    def compute(self, mixture: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Send tokens to the experts they chose: [T, D], [T, k], [T, k] -> [T, D]."""
        count, size = mixture.rules.num_experts, self.around.size()
        order = chosen.flatten().argsort(stable=True)  # [T*k], by expert; E: no slot
        sends = chosen.flatten().bincount(minlength=count)[:count]  # [E]
        order = order[: sends.sum()]              # [R], by expert, and so by rank
        receives = comm.all_to_all(sends, self.around).view(size, -1)  # [P, E/P]
        there = sends.view(size, -1).sum(1).tolist()  # [P], rows for each rank
        here = receives.sum(1).tolist()           # [P], rows from each rank
        rows = x[order // chosen.shape[1]]        # [R, D]
        rows = Exchange.apply(rows, self.around, there, here)  # [M, D]
        rows = run(mixture.experts, rows, receives.flatten().tolist())  # [M, D]
        rows = Exchange.apply(rows, self.around, here, there)  # [R, D], home again
        rows = rows * weights.flatten()[order, None].to(rows.dtype)
        y = torch.zeros_like(x).index_add(0, order // chosen.shape[1], rows)
        return y if mixture.shared is None else y + mixture.shared(x)

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum gradients over all ranks; an expert's over the ranks that hold it."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:        # else frozen, and so on every rank
                group = self.same if ".experts." in name else self.group
                parameter.grad = comm.all_reduce(parameter.grad, group)


def run(experts: nn.ModuleDict, rows: Tensor, lengths: list[int]) -> Tensor:
    """Let each expert compute its rows, which are parts of [M, D], one from each rank."""
    parts = list(rows.split(lengths))             # by rank, then by expert
    for place, expert in enumerate(experts.values()):
        some = slice(place, None, len(experts))   # of every rank one part
        y = expert(torch.cat(parts[some]))        # also without any row
        parts[some] = y.split(lengths[some])
    return torch.cat(parts)


class Exchange(Function):
    """Send each rank its rows; in backward their gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, sends: list[int], receives: list[int]) -> Any:
        ctx.way_back = group, receives, sends
        return comm.all_to_all(rows, group, sends, receives)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Exchange.apply(gradient, *ctx.way_back), None, None, None
