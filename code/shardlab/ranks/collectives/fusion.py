"""Horovod's tensor fusion: reduce many tensors in one buffer, since a ring has 2(N-1) latencies.

Sergeev and Del Balso 2018, https://arxiv.org/abs/1802.05799. In Horovod, rank 0 also finds out
which tensors are ready on all ranks; here all ranks pass the same tensors in the same order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shardlab import comm

from ... import exchanges as plans
from . import verbs

# 64 MB before release 0.21: https://horovod.readthedocs.io/en/stable/tensor-fusion.html
FUSION_BYTES = 128 * 2**20


def all_reduce_fused(
    tensors: Sequence[Tensor],
    group: comm.Group,
    plan: verbs.Planner = plans.ring_all_reduce,
    *,
    fusion_bytes: int = FUSION_BYTES,
    check: bool = True,
) -> list[Tensor]:
    """Sum every tensor over ranks; return new tensors in the same order.

    fusion_bytes: size of one buffer; 0 sends every tensor by itself. The other
    arguments are those of `collectives.all_reduce`.
    """
    results = [torch.empty(0)] * len(tensors)
    for together in fuse(tensors, fusion_bytes):
        flat = [tensors[index].detach().flatten() for index in together]
        buffer = torch.cat(flat)                                      # [n]
        combined = verbs.all_reduce(buffer, group, plan, check=check)
        parts = combined.split([x.numel() for x in flat])
        for index, part in zip(together, parts, strict=True):
            results[index] = part.view_as(tensors[index])
    return results


def fuse(tensors: Sequence[Tensor], fusion_bytes: int) -> list[list[int]]:
    """Choose the tensors that share a buffer: of one dtype, and as many as fit.

    Returns the indices of the tensors for each buffer. Errors: ValueError for a negative size.
    """
    if fusion_bytes < 0:
        raise ValueError(
            f"fusion_bytes={fusion_bytes} is negative; "
            "use 0 for no fusion, or a size such as 64 * 2**20"
        )
    waiting = list(range(len(tensors)))
    groups: list[list[int]] = []
    while waiting:
        dtype = tensors[waiting[0]].dtype
        room = fusion_bytes
        together: list[int] = []
        for index in waiting:
            if not together or (tensors[index].dtype == dtype and tensors[index].nbytes <= room):
                together.append(index)
                room -= tensors[index].nbytes
        groups.append(together)
        waiting = [index for index in waiting if index not in together]
    return groups
