"""Solutions of the exercises on data parallelism."""

import torch

from shardlab import comm
from shardlab.plain.data_parallel import average_gradients


def my_shard(num_samples, rank, world_size):
    size, longer = divmod(num_samples, world_size)
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))


def my_average_gradients(model, group, num_samples):
    total = comm.all_reduce(torch.tensor(num_samples), group)
    share = num_samples / total
    for parameter in model.parameters():
        if parameter.requires_grad:
            missing = parameter.grad is None
            gradient = torch.zeros_like(parameter) if missing else parameter.grad
            parameter.grad = comm.all_reduce(share * gradient, group)


def my_average_gradients_fused(model, group, num_samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    weighted = torch.cat([num_samples * flat, torch.tensor([num_samples])])
    summed = comm.all_reduce(weighted, group)
    parts = (summed[:-1] / summed[-1]).split([gradient.numel() for gradient in gradients])
    for parameter, part in zip(trained, parts, strict=True):
        parameter.grad = part.view_as(parameter)


def my_step_with_accumulation(model, microbatches, optimizer, group):
    optimizer.zero_grad()
    samples = sum(len(inputs) for inputs, _ in microbatches)
    for inputs, targets in microbatches:
        share = len(inputs) / samples
        (share * model(inputs, targets)).backward()
    average_gradients(model, group, share=1 / group.size())
    optimizer.step()
