"""Horovod's fusion: tensors that are ready travel together in one buffer, because every ring pays 2(n-1) latencies.

Sergeev and Del Balso 2018, https://arxiv.org/abs/1802.05799. Horovod's rank 0 also finds out which tensors are ready on
all ranks; here all ranks pass the same ones in the same order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ... import exchanges as plans
from .. import comm
from . import verbs

# 64 MB before release 0.21: https://horovod.readthedocs.io/en/stable/tensor-fusion.html
FUSION_BYTES = 128 * 2**20


def all_reduce_fused(
    tensors: Sequence[Tensor],
    group: comm.Group,
    plan: verbs.Planner = plans.ring_all_reduce,
    op: str = "sum",
    *,
    fusion_bytes: int = FUSION_BYTES,
    check: bool = True,
) -> list[Tensor]:
    """Combine every tensor over ranks, new tensors in the same order; the rest is as in `collectives.all_reduce`.

    fusion_bytes  of one buffer; 0: every tensor in messages of its own
    """
    results = [torch.empty(0)] * len(tensors)
    for together in fuse(tensors, fusion_bytes):
        buffer = torch.cat([tensors[index].detach().flatten() for index in together])
        combined = verbs.all_reduce(buffer, group, plan, op, check=check)
        for index, part in zip(together, combined.split([tensors[index].numel() for index in together]), strict=True):
            results[index] = part.view_as(tensors[index])
    return results


def fuse(tensors: Sequence[Tensor], fusion_bytes: int) -> list[list[int]]:
    """Which tensors travel together: of one dtype, and as many as fit. Errors: ValueError for a negative size."""
    if fusion_bytes < 0:
        raise ValueError(f"fusion_bytes={fusion_bytes} is negative; use 0 for no fusion, or a size such as 64 * 2**20")
    waiting, groups = list(range(len(tensors))), []
    while waiting:
        dtype, room = tensors[waiting[0]].dtype, fusion_bytes
        together: list[int] = []
        for index in waiting:
            if not together or (tensors[index].dtype == dtype and tensors[index].nbytes <= room):
                together.append(index)
                room -= tensors[index].nbytes
        groups.append(together)
        waiting = [index for index in waiting if index not in together]
    return groups
