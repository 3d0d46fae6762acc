"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import itertools

import torch
import torch.distributed as dist

from shardlab import exercises
from shardlab.exercises import checker
from shardlab.ranks import comm
from shardlab.ranks.data_parallel import averaging, sampler

from .grading import Chapter, Graded
from .solutions import data_parallel as solutions

CHAPTER = Chapter("data_parallel", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


average_gradients, my_shard = solutions.my_average_gradients, solutions.my_shard


def test_the_library_passes_its_own_exercises():
    assert exercises.check("data_parallel.shard", sampler.shard)
    assert exercises.check(
        "data_parallel.average_gradients", lambda model, group: averaging.average_gradients(model.parameters(), group)
    )


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

OVERLAP, MISSING, UNEVEN = "no sample is read twice", "no sample is left out", "shares differ by at most one sample"
NUMBERS = "returns numbers of samples"
AVERAGE = "every gradient is the average over the ranks of its group"
NONE, SAME = "where there was no gradient, there is none", "parameters stay what they were"
BYTES, MESSAGES = "a rank sends no more than one all-reduce of the gradients", "a rank sends one message"
ONCE, GLOBAL = "the optimizer steps once", "with the mean gradient over all samples of all ranks"
HELD, BATCHES = "activations of one microbatch at a time", "batches stay what they were"


@mistake("shard", MISSING, at="2 ranks, 3 samples", says="rank 0: [0]; rank 1: [1]")
def drops_the_tail(num_samples, rank, world_size):
    size = num_samples // world_size
    return range(rank * size, (rank + 1) * size)


@mistake("shard", UNEVEN, at="4 ranks, 10 samples", says="rank 3: [6, 7, 8, 9]")
def gives_the_tail_to_the_last(num_samples, rank, world_size):
    size = num_samples // world_size
    return range(rank * size, num_samples if rank == world_size - 1 else (rank + 1) * size)


@mistake("shard", UNEVEN, at="3 ranks, 7 samples", says="rank 2: [6]")
def rounds_up(num_samples, rank, world_size):
    size = -(-num_samples // world_size)
    return range(num_samples)[rank * size : (rank + 1) * size]


@mistake("shard", OVERLAP, at="2 ranks, 3 samples", says="rank 0: [0, 1]; rank 1: [1, 2]")
def overlaps(num_samples, rank, world_size):
    return range(rank * num_samples // world_size, -(-(rank + 1) * num_samples // world_size))


@mistake("shard", NUMBERS, MISSING, at="1 rank, 1 sample", says="[1]")
def counts_from_one(num_samples, rank, world_size):
    return [sample + 1 for sample in my_shard(num_samples, rank, world_size)]


@mistake("shard", NUMBERS, MISSING, at="1 rank, 1 sample", says="None, a NoneType")
def returns_nothing(num_samples, rank, world_size):
    my_shard(num_samples, rank, world_size)


@mistake("shard", NUMBERS, UNEVEN, at="1 rank, 1 sample", says="[0, 1]")
def never_ends(num_samples, rank, world_size):
    return itertools.count() if rank == 0 else []


@mistake("average_gradients", AVERAGE, at="2 ranks, one vector", says="[7, 8] on rank 0")
def forgets_to_divide(model, group):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = comm.all_reduce(parameter.grad, group)


@mistake("average_gradients", AVERAGE, at="2 ranks, one vector")
def divides_by_four(model, group):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = comm.all_reduce(parameter.grad, group) / min(4, group.size() ** 2)


@mistake("average_gradients", AVERAGE, SAME, BYTES, at="2 ranks, one vector")
def averages_parameters(model, group):
    for parameter in model.parameters():
        parameter.data = comm.all_reduce(parameter.data, group) / group.size()


@mistake("average_gradients", SAME, BYTES, at="2 ranks, one vector", says="another weight on rank 0")
def averages_parameters_too(model, group):
    averages_parameters(model, group)
    average_gradients(model, group)


@mistake("average_gradients", AVERAGE, BYTES, at="4 ranks in groups of 2, one vector")
def asks_everyone(model, group):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@mistake("average_gradients", checker.RUNS, at="2 ranks, one vector", says="Deadlock")
def skips_a_rank(model, group):
    if group.rank() < group.size() - 1 or group.size() == 1:
        average_gradients(model, group)


@mistake("average_gradients", checker.RUNS, at="2 ranks, a frozen", says="comm.all_reduce(parameter.grad, group) /")
def expects_gradients_everywhere(model, group):
    for parameter in model.parameters():
        parameter.grad = comm.all_reduce(parameter.grad, group) / group.size()


@mistake("average_gradients", NONE, BYTES, at="2 ranks, a frozen", says="[0, 0] on rank 0")
def invents_zeros(model, group):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    average_gradients(model, group)


@mistake("average_gradients", BYTES, at="2 ranks, a weight that two layers share", says="32 bytes sent by rank 0")
def averages_tied_twice(model, group):
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.grad is not None:
                parameter.grad = comm.all_reduce(parameter.grad, group) / group.size()


@mistake("average_gradients", BYTES, at="3 ranks", says="send")
def asks_a_server(model, group):
    averaging.average_gradients(model.parameters(), group, averaging.mean_through_server)


@mistake("average_gradients_fused", MESSAGES, at="3 ranks", says="in 3 messages (3 x all_reduce)")
def one_message_each(model, group):
    average_gradients(model, group)


@mistake("average_gradients_fused", AVERAGE, at="3 ranks")
def takes_apart_in_another_order(model, group):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = comm.all_reduce(torch.cat([g.flatten() for g in gradients]), group) / group.size()
    for gradient in reversed(gradients):
        part, flat = flat[: gradient.numel()], flat[gradient.numel() :]
        gradient.copy_(part.view_as(gradient))


@mistake("average_gradients_fused", checker.RUNS, at="3 ranks", says="flat = torch.cat([g.view(-1)")
def views_what_is_transposed(model, group):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([g.view(-1) for g in gradients])
    average = comm.all_reduce(flat, group) / group.size()
    for gradient, part in zip(gradients, average.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@mistake("average_gradients_fused", NONE, BYTES, at="2 ranks, a frozen", says="None, as before")
def sends_zeros(model, group):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    solutions.my_average_gradients_fused(model, group)


@mistake("average_gradients_fused", AVERAGE, at="2 ranks, one vector")
def divides_the_local_part(model, group):
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    comm.all_reduce(torch.cat([g.flatten() for g in gradients]) / group.size(), group)
    for gradient in gradients:
        gradient /= group.size()


def accumulate(model, batches, loss_fn, weight):
    for x, y in batches:
        (loss_fn(model(x), y) * weight(x)).backward()


def share(batches):
    num_samples = sum(len(x) for x, _ in batches)
    return lambda x: len(x) / num_samples


@mistake("step_with_accumulation", BYTES, at="2 ranks, 2 microbatches", says="(4 x all_reduce)")
def synchronises_every_microbatch(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    for x, y in batches:
        accumulate(model, [(x, y)], loss_fn, share(batches))
        average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", ONCE, GLOBAL, BYTES, at="1 rank, 2 microbatches of 1 sample", says="2 times")
def steps_every_microbatch(model, batches, loss_fn, optimizer, group):
    for batch in batches:
        solutions.my_step_with_accumulation(model, [batch], loss_fn, optimizer, group)


@mistake("step_with_accumulation", GLOBAL, at="1 rank, 2 microbatches of 1 sample")
def sums_over_microbatches(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    accumulate(model, batches, loss_fn, lambda x: 1)
    average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", GLOBAL, at="2 ranks, microbatches of unequal size", says="microbatches of 3, 1")
def averages_averages(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    accumulate(model, batches, loss_fn, lambda x: 1 / len(batches))
    average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", GLOBAL, at="2 ranks, gradients left from the step before")
def forgets_zero_grad(model, batches, loss_fn, optimizer, group):
    accumulate(model, batches, loss_fn, share(batches))
    average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", GLOBAL, at="2 ranks, 1 microbatch")
def sums_over_ranks(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    accumulate(model, batches, loss_fn, share(batches))
    forgets_to_divide(model, group)
    optimizer.step()


@mistake("step_with_accumulation", GLOBAL, at="2 ranks, 1 microbatch")
def averages_weights_after_the_step(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    accumulate(model, batches, loss_fn, share(batches))
    optimizer.step()
    averages_parameters(model, group)


@mistake("step_with_accumulation", HELD, at="1 rank, 2 microbatches of 1 sample", says="of 2 on rank 0")
def makes_one_large_batch(model, batches, loss_fn, optimizer, group):
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    solutions.my_step_with_accumulation(model, [(x, y)], loss_fn, optimizer, group)


@mistake("step_with_accumulation", HELD, at="1 rank, 2 microbatches of 1 sample", says="of 2 on rank 0")
def calls_backward_at_the_end(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    sum(loss_fn(model(x), y) * share(batches)(x) for x, y in batches).backward()
    average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", BATCHES, at="1 rank, 2 microbatches of 1 sample")
def uses_the_batches_up(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    weight = share(batches)
    while batches:
        accumulate(model, [batches.pop(0)], loss_fn, weight)
    average_gradients(model, group)
    optimizer.step()


@mistake("step_with_accumulation", checker.RUNS, at="2 ranks, 1 microbatch", says="Deadlock")
def only_the_first_rank_synchronises(model, batches, loss_fn, optimizer, group):
    optimizer.zero_grad()
    accumulate(model, batches, loss_fn, share(batches))
    if group.rank() == 0:
        average_gradients(model, group)
    optimizer.step()
