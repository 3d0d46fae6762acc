"""Data parallelism, plainly: every rank has the whole model, and its own samples.

Li et al. 2020, https://arxiv.org/abs/2006.15704. The engine, `ranks.data_parallel`,
sends many gradients in one message while backward computes others.

    model = Transformer(spec)                     # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:                         # [B, S + 1] tokens of all ranks
        mine = data_parallel.shard(batch, group)  # [B/N, S + 1], this rank's own
        optimizer.zero_grad()
        model(mine[:, :-1], mine[:, 1:]).backward()  # the mean loss over its samples
        share = len(mine) / len(batch)            # 1/N, if N divides B
        data_parallel.average_gradients(model, group, share)
        optimizer.step()                          # the same step on every rank

N = ranks, B = samples of all ranks, S = sequence.
"""

import torch
from torch import Tensor, nn

from shardlab import comm


@torch.no_grad()
def copy_from_rank_0(model: nn.Module, group: comm.Group) -> None:
    """Overwrite parameters and buffers of the model with those of rank 0."""
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.copy_(comm.broadcast(tensor, group))


def shard(batch: Tensor, group: comm.Group) -> Tensor:
    """Return this rank's samples: [B, ...] -> [B/N, ...].

    The first ranks get one sample more where N does not divide B.
    Errors: ValueError where a rank would get none, and have no gradient to average.
    """
    if len(batch) < group.size():
        raise ValueError(
            f"{len(batch)} samples leave some of {group.size()} ranks without any; "
            f"use at least {group.size()} samples, or at most {len(batch)} ranks"
        )
    return batch.tensor_split(group.size())[group.rank()]


def average_gradients(model: nn.Module, group: comm.Group, share: float) -> None:
    """Replace every gradient by its mean over the samples of all ranks.

    share: this rank's samples over those of all ranks; so every sample counts once.
    Errors: ValueError for a missing gradient, for which other ranks would wait.
    """
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue                              # frozen, and so on every rank
        if parameter.grad is None:
            raise ValueError(
                f"{name} has no gradient on rank {group.rank()}; use it in every "
                f"forward pass, or freeze it on every rank with requires_grad_(False)"
            )
        partial = share * parameter.grad          # a part of the mean over all B
        parameter.grad = comm.all_reduce(partial, group)  # all of it, on every rank
