"""Who reads which sample: disjoint shards, equal to within one, and the weights that make ragged ends exact.

A rank's loss is the mean over its own n samples. The mean over all N samples is the sum over ranks of n/N
times that. DataParallel divides by the number of ranks, so each loss is multiplied by n/N times that number.
"""

import torch
from torch import Tensor


def shard(num_samples: int, rank: int, world_size: int) -> range:
    """This rank's samples: shards lie side by side; the first ones hold one more where it does not divide."""
    if world_size < 1:
        raise ValueError(f"world_size={world_size} leaves nobody to read {num_samples} samples; use at least 1 rank")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size} ranks does not exist; ranks are 0 to {world_size - 1}")
    if num_samples < world_size:
        raise ValueError(
            f"{num_samples} samples leave some of {world_size} ranks without any; "
            f"use at most {num_samples} ranks, or at least {world_size} samples"
        )
    size, longer = divmod(num_samples, world_size)
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))


def weight(num_local: int, num_total: int, world_size: int) -> float:
    """What to multiply a rank's mean loss by, so that the average over ranks is the mean over all samples."""
    if not 0 < num_local <= num_total:
        raise ValueError(
            f"{num_local} of {num_total} samples have no mean to weigh; give the rank 1 sample or more, "
            f"and count in num_total those of all ranks"
        )
    return num_local * world_size / num_total


def epoch(
    num_samples: int, batch_size: int, rank: int, world_size: int, *, number: int = 0, seed: int = 0
) -> list[tuple[Tensor, float]]:
    """This rank's part of every batch of one epoch: (indices [n], on the CPU, and their weight) per step.

    batch_size   samples per step, over all ranks; the last batch may be smaller, or larger by fewer than
                 `world_size`: samples too few for a batch of their own join the one before (35 of 32 over 4 ranks)
    number, seed the order of the samples; all ranks shuffle alike, so that their parts stay disjoint
    """
    if batch_size < world_size:
        raise ValueError(
            f"batch_size={batch_size} leaves some of {world_size} ranks without a sample; use at least {world_size}"
        )
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    order = torch.randperm(num_samples, generator=generator, device="cpu")  # alike on every device
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) < world_size:  # too few: they join the batch before
        batches[-2:] = [torch.cat(batches[-2:])]
    shards = [shard(len(batch), rank, world_size) for batch in batches]
    return [(b[list(s)], weight(len(s), len(b), world_size)) for b, s in zip(batches, shards, strict=True)]
