"""Which rank reads which sample: disjoint shards of almost equal size, and weights for them.

A rank's loss is the mean over its n samples. The mean over all B samples is the sum over ranks of
n/B times that loss. DataParallel sums and divides by the number of ranks, so each rank multiplies
its loss by n/B times the number of ranks.
"""

import torch
from torch import Tensor

from shardlab.sharding.deal import deal


def shard(num_samples: int, rank: int, world_size: int) -> range:
    """Return the numbers of this rank's samples.

    Shards are contiguous, in the order of ranks; where `num_samples` does not divide, the first
    ranks hold one sample more. Errors: ValueError for fewer samples than ranks, or a rank outside
    the world.
    """
    if world_size < 1:
        raise ValueError(
            f"world_size={world_size} leaves nobody to read {num_samples} samples; "
            f"use at least 1 rank"
        )
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank {rank} of {world_size} ranks does not exist; ranks are 0 to {world_size - 1}"
        )
    if num_samples < world_size:
        raise ValueError(
            f"{num_samples} samples leave some of {world_size} ranks without any; "
            f"use at most {num_samples} ranks, or at least {world_size} samples"
        )
    return list(deal(num_samples, world_size))[rank]


def weight(num_local: int, num_total: int, world_size: int) -> float:
    """Return the factor of a rank's mean loss with which ranks average to the mean of all samples.

    Errors: ValueError unless the rank has at least 1 and at most `num_total` samples.
    """
    if not 0 < num_local <= num_total:
        raise ValueError(
            f"{num_local} of {num_total} samples have no mean to weigh; give the rank 1 sample or "
            f"more, and count in num_total those of all ranks"
        )
    return num_local * world_size / num_total


def epoch(
    num_samples: int, batch_size: int, rank: int, world_size: int, *, number: int = 0, seed: int = 0
) -> list[tuple[Tensor, float]]:
    """Return this rank's part of each batch of an epoch, as (indices [n] on the CPU, weight).

    batch_size    samples per step, over all ranks. Only the last batch may differ: if fewer than
                  `world_size` samples are left over, they join it (67 samples, 4 ranks, batches of
                  64: one batch of 67)
    number, seed  choose the order of the samples; all ranks shuffle alike, so their parts are
                  disjoint
    """
    if batch_size < world_size:
        raise ValueError(
            f"batch_size={batch_size} leaves some of {world_size} ranks without a sample; "
            f"use at least {world_size}"
        )
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    order = torch.randperm(num_samples, generator=generator, device="cpu")  # alike on every device
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) < world_size:
        batches[-2:] = [torch.cat(batches[-2:])]
    steps = []
    for batch in batches:
        own = shard(len(batch), rank, world_size)
        steps.append((batch[list(own)], weight(len(own), len(batch), world_size)))
    return steps
