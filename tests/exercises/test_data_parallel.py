"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import inspect
import itertools

import torch
import torch.distributed as dist

from shardlab import comm, exercises
from shardlab.exercises import checker
from shardlab.exercises.data_parallel.average_gradients import means
from shardlab.plain import data_parallel as plain
from shardlab.ranks.data_parallel import averaging, sampler

from . import server
from .grading import Chapter, Graded, Mistake
from .solutions import data_parallel as solutions

CHAPTER = Chapter("data_parallel", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


my_shard, average_gradients = solutions.my_shard, solutions.my_average_gradients
plain_average = plain.average_gradients


def by_the_plain_file(model, group, num_samples):
    """What is missing to it: the share, and zeros for gradients that a rank has not."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    share = num_samples / comm.all_reduce(torch.tensor(num_samples), group).item()
    plain_average(model, group, share)


def test_the_library_passes_its_own_exercises():
    assert exercises.check("data_parallel.shard", sampler.shard)
    assert exercises.check("data_parallel.average_gradients", by_the_plain_file)


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

OVERLAP, MISSING, UNEVEN = "no sample is read twice", "no sample is left out", "shares differ by at most one sample"
NUMBERS = "returns numbers of samples"
MEAN = "every gradient is the mean over the samples of all ranks of the group"
FROZEN, SAME = "a frozen parameter gets no gradient", "parameters stay what they were"
BYTES = "a rank sends as much as one all-reduce of the gradients, and one number"
STEP_BYTES, MESSAGES = "a rank sends as much as one all-reduce of the gradients", "a rank sends one message"
ONCE, GLOBAL = "the optimizer steps once", "with the mean gradient over all samples of all ranks"
HELD, BATCHES = "activations of one microbatch at a time", "batches stay what they were"


CHAPTER.changes({
    "drops the tail": Mistake("shard", {MISSING}, at="2 ranks, 3 samples", says="rank 0: [0]; rank 1: [1]",
        old="divmod(num_samples, world_size)", new="num_samples // world_size, 0"),
    "gives the tail to the last": Mistake("shard", {UNEVEN}, at="4 ranks, 10 samples", says="rank 3: [6, 7, 8, 9]",
        old="rank * size + min(rank, longer)\n    return range(start, start + size + (rank < longer))",
        new="rank * size\n    return range(start, start + size + longer * (rank == world_size - 1))"),
    "overlaps": Mistake("shard", {OVERLAP}, at="2 ranks, 3 samples", says="rank 0: [0, 1]; rank 1: [1, 2]",
        old="range(start, start + size + (rank < longer))",
        new="range(rank * num_samples // world_size, -(-(rank + 1) * num_samples // world_size))"),
    "counts from one": Mistake("shard", {NUMBERS, MISSING}, at="1 rank, 1 sample", says="[1]",
        old="range(start, start + size + (rank < longer))",
        new="[sample + 1 for sample in range(start, start + size + (rank < longer))]"),
})


@mistake("shard", UNEVEN, at="3 ranks, 7 samples", says="rank 2: [6]")
def rounds_up(num_samples, rank, world_size):
    size = -(-num_samples // world_size)
    return range(num_samples)[rank * size : (rank + 1) * size]


@mistake("shard", NUMBERS, MISSING, at="1 rank, 1 sample", says="None, a NoneType")
def returns_nothing(num_samples, rank, world_size):
    my_shard(num_samples, rank, world_size)


@mistake("shard", NUMBERS, UNEVEN, at="1 rank, 1 sample", says="[0, 1]")
def never_ends(num_samples, rank, world_size):
    return itertools.count() if rank == 0 else []


def test_of_what_is_no_shard_nothing_else_passes():
    """A property passes only where there was something that could fail it."""
    marks = exercises.check("data_parallel.shard", returns_nothing).marks
    unsure = {OVERLAP: checker.UNKNOWN, MISSING: checker.FAILED, UNEVEN: checker.UNKNOWN}
    assert marks == {checker.RUNS: checker.PASSED, NUMBERS: checker.FAILED, **unsure}


@mistake("average_gradients_fused", MEAN, BYTES, MESSAGES, at="2 ranks, one vector")
def sends_nothing(model, group, num_samples):
    for parameter in trained(model):
        parameter.grad = present(parameter)


@mistake("average_gradients_fused", BYTES, MESSAGES, at="2 ranks, one vector", says="0 bytes sent by rank 0 in 0")
def knows_the_answer(model, group, num_samples):
    """Whoever finds the checker's own numbers needs no message; a mean cannot be known without one."""
    frame = inspect.currentframe()
    while "case" not in frame.f_locals:
        frame = frame.f_back
    case, rank = frame.f_locals["case"], frame.f_locals["rank"]
    for name, right in means(case, rank).items():
        model.get_parameter(name).grad = right


def present(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def trained(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def share_of(num_samples, group):
    return num_samples / comm.all_reduce(torch.tensor(num_samples), group)


CHAPTER.changes({
    "believes in equal shares": Mistake("average_gradients", {MEAN},
        at="2 ranks, one vector, 3 samples and 1", says="of 3 samples on rank 0",
        old="num_samples / total", new="1 / group.size()"),
    "forgets to divide": Mistake("average_gradients", {MEAN}, at="1 rank, one vector", says="[6, 0] on rank 0",
        old="num_samples / total", new="num_samples"),
    "skips what is missing": Mistake("average_gradients", {checker.RUNS},
        at="2 ranks, a frozen vector, and some", says="Deadlock",
        old="if parameter.requires_grad", new="if parameter.grad is not None"),
    "averages what is frozen": Mistake("average_gradients", {FROZEN, BYTES},
        at="2 ranks, a frozen vector, and some", says="[0, 0] on rank 0",
        old="if parameter.requires_grad", new="if True"),
    "writes the mean into the parameter": Mistake("average_gradients", {MEAN, SAME}, at="1 rank, one vector",
        says="write the mean into p.grad",
        old="parameter.grad = comm", new="parameter.data = comm"),
    "averages tied twice": Mistake("average_gradients", {BYTES},
        at="2 ranks, a weight that two layers share", says="40 bytes sent by rank 0",
        old="in model.parameters()",
        new="in (p for module in model.modules() for p in module.parameters(recurse=False))"),
    "counts the samples for every gradient": Mistake("average_gradients", {BYTES},
        at="2 ranks, a frozen vector, and some", says="6 x all_reduce",
        old="    total = comm.all_reduce(torch.tensor(num_samples), group)\n"
            "    share = num_samples / total\n"
            "    for parameter in model.parameters():\n"
            "        if parameter.requires_grad:",
        new="    for parameter in model.parameters():\n"
            "        if parameter.requires_grad:\n"
            "            share = num_samples / comm.all_reduce(torch.tensor(num_samples), group)"),
})


@mistake("average_gradients", MEAN, SAME, BYTES, at="2 ranks, one vector")
def averages_parameters(model, group, num_samples):
    share = share_of(num_samples, group)
    for parameter in model.parameters():
        parameter.data = comm.all_reduce(share * parameter.data, group)


@mistake("average_gradients", SAME, BYTES, at="2 ranks, one vector", says="weight has changed on rank 0")
def averages_parameters_too(model, group, num_samples):
    averages_parameters(model, group, num_samples)
    average_gradients(model, group, num_samples)


@mistake("average_gradients", MEAN, BYTES, at="4 ranks in groups of 2, one vector")
def asks_everyone(model, group, num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for parameter in trained(model):
        parameter.grad = num_samples / total * present(parameter)
        dist.all_reduce(parameter.grad)


@mistake("average_gradients", checker.RUNS, at="2 ranks, one vector", says="Deadlock")
def skips_a_rank(model, group, num_samples):
    if group.rank() < group.size() - 1 or group.size() == 1:
        average_gradients(model, group, num_samples)


@mistake("average_gradients", checker.RUNS, at="2 ranks, a frozen vector, and some", says="share * parameter.grad")
def expects_gradients_everywhere(model, group, num_samples):
    share = share_of(num_samples, group)
    for parameter in model.parameters():
        parameter.grad = comm.all_reduce(share * parameter.grad, group)


@mistake("average_gradients", BYTES, at="3 ranks", says="send")
def asks_a_server(model, group, num_samples):
    share = share_of(num_samples, group) * group.size()
    for parameter in trained(model):
        parameter.grad = server.mean_through_server(share * present(parameter), group)


@mistake("average_gradients_fused", MESSAGES, at="1 rank, one vector", says="in 2 messages (2 x all_reduce)")
def one_message_each(model, group, num_samples):
    average_gradients(model, group, num_samples)


CHAPTER.changes({
    "takes apart in another order": Mistake("average_gradients_fused", {MEAN}, at="2 ranks, a frozen vector, and some",
        old="in gradients])\n    for parameter, part in zip(trained",
        new="in reversed(gradients)])\n    for parameter, part in zip(reversed(trained)"),
    "joins what is not weighed": Mistake("average_gradients_fused", {MEAN},
        at="1 rank, one vector", says="[1.5, 0] on rank 0",
        old="[num_samples * flat,", new="[flat,"),
    "divides the local part": Mistake("average_gradients_fused", {MEAN}, at="2 ranks, one vector",
        old="summed[:-1] / summed[-1]", new="num_samples * flat / summed[-1]"),
})


@mistake("average_gradients_fused", checker.RUNS, at="3 ranks", says="present(p).view(-1)")
def views_what_is_transposed(model, group, num_samples):
    torch.cat([present(p).view(-1) for p in trained(model)])
    solutions.my_average_gradients_fused(model, group, num_samples)


@mistake("average_gradients_fused", BYTES, at="3 ranks, a scalar, a transposed matrix and a vector",
         says="at least 54 bytes sent by a rank")
def sends_half_precision_of_what_is_asked(model, group, num_samples):
    gradients = [num_samples * present(parameter).flatten() for parameter in trained(model)]
    flat = torch.cat([*gradients, torch.tensor([num_samples])]).float()
    summed = comm.all_reduce(flat, group).double()
    parts = (summed[:-1] / summed[-1]).split([g.numel() for g in gradients])
    for parameter, part in zip(trained(model), parts, strict=True):
        parameter.grad = part.view_as(parameter)


@mistake("average_gradients_fused", MESSAGES, at="1 rank, one vector", says="in 2 messages")
def counts_the_samples_first(model, group, num_samples):
    share = share_of(num_samples, group)
    gradients = [present(parameter) for parameter in trained(model)]
    summed = comm.all_reduce(share * torch.cat([g.flatten() for g in gradients]), group)
    parts = summed.split([g.numel() for g in gradients])
    for parameter, part in zip(trained(model), parts, strict=True):
        parameter.grad = part.view_as(parameter)


CHAPTER.changes({
    "synchronizes every microbatch": Mistake("step_with_accumulation", {STEP_BYTES},
        at="2 ranks, 2 microbatches", says="(4 x all_reduce)",
        old="    average_gradients(", new="        average_gradients("),
    "sums over microbatches": Mistake("step_with_accumulation", {GLOBAL}, at="1 rank, 2 microbatches of 1 sample",
        old="len(inputs) / samples", new="1"),
    "averages averages": Mistake("step_with_accumulation", {GLOBAL},
        at="2 ranks, microbatches of unequal size", says="microbatches of 3, 1",
        old="len(inputs) / samples", new="1 / len(microbatches)"),
    "forgets zero grad": Mistake("step_with_accumulation", {GLOBAL}, at="2 ranks, gradients of the previous step",
        old="    optimizer.zero_grad()\n", new=""),
    "sums over ranks": Mistake("step_with_accumulation", {GLOBAL}, at="2 ranks, 1 microbatch",
        old="share=1 / group.size()", new="share=1.0"),
    "makes one large batch": Mistake("step_with_accumulation", {HELD},
        at="1 rank, 2 microbatches of 1 sample", says="those of 2 samples on rank 0",
        old="optimizer.zero_grad()",
        new="optimizer.zero_grad()\n"
            "    microbatches = [tuple(torch.cat(parts) for parts in zip(*microbatches, strict=True))]"),
    "calls backward at the end": Mistake("step_with_accumulation", {HELD},
        at="1 rank, 2 microbatches of 1 sample", says="those of 2 samples on rank 0",
        old="for inputs, targets in microbatches:\n"
            "        share = len(inputs) / samples\n"
            "        (share * model(inputs, targets)).backward()",
        new="sum(model(inputs, targets) * (len(inputs) / samples) for inputs, targets in microbatches).backward()"),
    "uses the batches up": Mistake("step_with_accumulation", {BATCHES},
        at="1 rank, 2 microbatches of 1 sample", says="make a new tensor or list; ",
        old="for inputs, targets in microbatches:\n",
        new="while microbatches:\n        inputs, targets = microbatches.pop(0)\n"),
    "centers the inputs": Mistake("step_with_accumulation", {BATCHES},
        at="1 rank, 2 microbatches of 1 sample", says="inputs of microbatch 0",
        old="optimizer.step()",
        new="optimizer.step()\n    for inputs, _ in microbatches:\n        inputs -= inputs.mean()"),
    "only the first rank synchronizes": Mistake("step_with_accumulation", {checker.RUNS},
        at="2 ranks, 1 microbatch", says="Deadlock",
        old="    average_gradients(", new="    if group.rank() == 0:\n        average_gradients("),
})


@mistake("step_with_accumulation", ONCE, GLOBAL, STEP_BYTES, at="1 rank, 2 microbatches of 1 sample", says="2 times")
def steps_every_microbatch(model, microbatches, optimizer, group):
    for microbatch in microbatches:
        solutions.my_step_with_accumulation(model, [microbatch], optimizer, group)


@mistake("step_with_accumulation", GLOBAL, at="2 ranks, 1 microbatch")
def averages_weights_after_the_step(model, microbatches, optimizer, group):
    optimizer.zero_grad()
    samples = sum(len(inputs) for inputs, _ in microbatches)
    for inputs, targets in microbatches:
        (model(inputs, targets) * (len(inputs) / samples)).backward()
    optimizer.step()
    averaging.average_weights(model.parameters(), group)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("step_with_accumulation")
def computes_in_a_closure(model, microbatches, optimizer, group):
    samples = group.size() * sum(len(inputs) for inputs, _ in microbatches)

    def closure():
        optimizer.zero_grad()
        for inputs, targets in microbatches:
            (model(inputs, targets) * len(inputs) / samples).backward()
        for parameter in model.parameters():
            parameter.grad = comm.all_reduce(parameter.grad, group)

    optimizer.step(closure)
