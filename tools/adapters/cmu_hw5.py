"""Homework 5 of CMU's LLM Systems, as far as it needs no GPU.

Copy this file into the homework's folder, then

    names="average_gradients, partition_indices, train_step"
    echo "from cmu_hw5 import $names" >> assignment/data_parallel.py
    echo "from cmu_hw5 import clock_cycles" >> assignment/pipeline.py
    pytest tests/merged/test_core.py -k "partitions or schedule"
    python -m grading.distributed --case dp_gradients
    python -m grading.distributed --case dp_updates
"""

import random

import torch.distributed as dist

from shardlab import schedules
from shardlab.ranks.data_parallel.averaging import mean
from shardlab.schedules.clock import times
from shardlab.sharding.deal import deal


def partition_indices(size, world_size, seed=1234):
    """Deal shuffled samples to ranks; the first ranks get one more."""
    if size < 0:
        raise ValueError(f"size is {size}; a data set has 0 samples or more")
    order = random.Random(seed).sample(range(size), size)
    return [order[part.start : part.stop] for part in deal(size, world_size)]


def average_gradients(model):
    """Replace every gradient by its mean over the ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = mean(parameter.grad, dist.group.WORLD)


def train_step(model, optimizer, inputs, targets, loss_fn):
    """Step once on the averaged gradients; return this rank's loss."""
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return loss.item()


def clock_cycles(microbatches, stages):
    """Yield the (microbatch, stage) pairs of the forward passes that GPipe starts together."""
    if microbatches == 0:
        return
    forwards = schedules.make("GPipe", stages, microbatches).forward_only()
    starts = [[start for start, _ in row] for row in times(forwards)]
    for tick in range(microbatches + stages - 1):
        yield [(row.index(tick), stage) for stage, row in enumerate(starts) if tick in row]
