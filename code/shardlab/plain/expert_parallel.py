"""Expert parallelism, plainly: ranks hold different experts, and tokens travel to theirs.

Lepikhin et al. 2020, GShard, https://arxiv.org/abs/2006.16668. The engine,
`ranks.expert_parallel`, sends a token once to each rank, or to each node.

    model = Transformer(spec)                      # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)   # the same numbers on every rank
    experts = expert_parallel.LocalExperts(model, group, ep)  # E/ep of every layer
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

N = ranks, ep = ranks that hold all experts between them, T = tokens of this rank,
h = width, E = experts, k = those that a token chooses. A token is a row for each
expert that it chose: T*k rows, R without those that found no slot. This rank
receives A rows. Rank 0 of two, with experts 0 and 1 of four:

    sends      2 0 | 1 3        rows for each expert: two stay, four go to rank 1
    received   2 0 | 1 1        from each rank, for expert 0 and for expert 1
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from shardlab import comm


class LocalExperts:
    """This rank's experts: E/ep of every mixture. Its neighbours hold the others."""

    def __init__(self, model: Any, group: comm.Group, ep: int):
        self.group = group
        self.neighbours = comm.split(group, ep)    # ep ranks, which hold all experts
        self.replicas = comm.across(group, ep)     # N/ep ranks, which hold the same ones
        for mixture in model.modules():
            if not hasattr(mixture, "experts"):
                continue
            count = len(mixture.experts)
            if count % ep:
                raise ValueError(f"{count} experts on {ep} ranks; use a divisor of {count}")
            for number in range(count):
                holder = number // (count // ep)
                if holder != self.neighbours.rank():
                    del mixture.experts[str(number)]
            mixture.group = group                  # balance the load of all ranks
            mixture.compute = self.compute

    def compute(self, mixture: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Send tokens to the experts they chose: [T, h], [T, k], [T, k] -> [T, h]."""
        group, ep = self.neighbours, self.neighbours.size()
        count = mixture.rules.num_experts
        k = chosen.shape[1]
        chosen = chosen.flatten()                  # [T*k]; E: found no slot
        weights = weights.flatten()                # [T*k]

        # Sort the rows by expert, and so by the rank that holds it.
        sends = chosen.bincount(minlength=count)[:count]  # [E]
        order = chosen.argsort(stable=True)
        order = order[: sends.sum()]               # [R]
        token = order // k                         # [R]: the token of each row
        rows = x[token]                            # [R, h]

        # Tell every rank how many rows come, send them, compute, and send them back.
        received = comm.all_to_all(sends, group)   # [E]
        received = received.view(ep, -1)           # [ep, E/ep]
        here = received.sum(1).tolist()            # ep numbers
        sends = sends.view(ep, -1)                 # [ep, E/ep]
        there = sends.sum(1).tolist()              # ep numbers
        rows = AllToAllRows.apply(rows, group, there, here)  # [A, h]
        rows = run(mixture.experts, rows, received.tolist())  # [A, h]
        rows = AllToAllRows.apply(rows, group, here, there)  # [R, h], home again

        # Add up what a token's experts made of it.
        rows = rows * weights[order, None].to(rows.dtype)
        y = torch.zeros_like(x).index_add(0, token, rows)  # [T, h]
        return y if mixture.shared is None else y + mixture.shared(x)

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up the gradients of all ranks; an expert's, of the ranks that hold it.

        Nothing is divided: every loss has this rank's share as a factor, 1/N. The tokens
        of its neighbours came to the expert, so its gradient has their parts already.
        """
        for name, parameter in model.named_parameters():
            if parameter.grad is None:             # frozen, and so on every rank
                continue
            group = self.replicas if ".experts." in name else self.group
            parameter.grad = comm.all_reduce(parameter.grad, group)


def run(experts: nn.ModuleDict, rows: Tensor, received: list[list[int]]) -> Tensor:
    """Let each expert compute its rows: [A, h] -> [A, h].

    received: the number of rows, by the rank that they came from, then by expert.
    """
    inputs: list[list[Tensor]] = [[] for _ in experts]  # of an expert, by rank
    from_ranks = rows.split([sum(lengths) for lengths in received])
    for part, lengths in zip(from_ranks, received, strict=True):
        for number, piece in enumerate(part.split(lengths)):
            inputs[number].append(piece)

    results: list[list[Tensor]] = [[] for _ in received]  # for a rank, by expert
    for expert, pieces in zip(experts.values(), inputs, strict=True):
        y = expert(torch.cat(pieces))              # also without any row
        lengths = [len(piece) for piece in pieces]
        for rank, piece in enumerate(y.split(lengths)):
            results[rank].append(piece)
    return torch.cat([piece for pieces in results for piece in pieces])


class AllToAllRows(Function):
    """Send each rank its rows; in backward their gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any, sends: list[int], receives: list[int]) -> Any:
        ctx.way_back = group, receives, sends
        return comm.all_to_all(rows, group, sends, receives)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = AllToAllRows.apply(gradient, *ctx.way_back)
        return gradient, None, None, None
