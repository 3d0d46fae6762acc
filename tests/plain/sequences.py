"""What the plain files of context parallelism are held to: one process, with documents in a sequence or without."""

import functools
import types

import torch

from shardlab import comm
from shardlab.plain import context_parallel, data_parallel
from shardlab.ranks import transformer

from . import lesson

LENGTH = 24  # two parts for each of 1 to 4 ranks
ONE, SEVERAL = (24,), (5, 1, 11, 7)  # tokens of each document; several end where no part of any rank does
CASES = [(*lesson.CASES[0], ONE), (*lesson.CASES[1], SEVERAL), (*lesson.CASES[2], ONE), (*lesson.CASES[2], SEVERAL)]
ORDERS = [(False, CASES[-1]), *((True, case) for case in CASES)]  # whether in a zig-zag: one case is enough without


def numbers(lengths):
    """The number of each token's document, [S]."""
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))


def attend(q, k, v, *, lengths):
    """Attend in each document by itself."""
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([transformer.causal_attention(*part) for part in parts], dim=2)


@functools.cache
def prepared(lengths):
    """What makes a model see documents: attention and positions."""
    positions = torch.cat([torch.arange(length) for length in lengths])

    def prepare(model):
        whole = functools.partial(attend, lengths=lengths)
        transformer.replace(model, attend=whole, locate=lambda _: positions)

    return prepare


def alone(style, frozen, lengths):
    """The parameters after each step of one process."""
    return lesson.alone(style, frozen, length=LENGTH, prepare=prepared(lengths))


def average_in_one_message(model, group, share):
    """Do what `data_parallel.average_gradients` does; with a message for each parameter ranks mostly wake and sleep."""
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    averaged = comm.all_reduce(share * torch.cat([x.flatten() for x in gradients]), group)
    for x, piece in zip(gradients, averaged.split([x.numel() for x in gradients]), strict=True):
        x.copy_(piece.view_as(x))


def context_of(group, case, zig_zag):
    """The tokens of this rank, dealt in one of the two orders."""
    order = context_parallel.zig_zag if zig_zag else context_parallel.contiguous
    return context_parallel.Context(numbers(case[2]), order(LENGTH, group), group)


def train(group, name, source, case, read=None, zig_zag=True, **options):
    """Run the lines of a docstring; returns what `read` finds after each step, or the parameters."""
    if read is None:
        options["data_parallel"] = types.SimpleNamespace(
            copy_from_rank_0=data_parallel.copy_from_rank_0, average_gradients=average_in_one_message
        )
    read = read or (lambda variables, _: lesson.parameters(variables["model"]))
    if not zig_zag:
        source = lesson.changed(source, "context_parallel.zig_zag(", "context_parallel.contiguous(")
    variables = {"documents": numbers(case[2]), "S": LENGTH, **options}
    return lesson.follow(group, name, source, case[:2], read, length=LENGTH, **variables)


def first_gradients(group, context, attend, case):
    """The mean loss over all ranks, and the gradient of every parameter, before any step."""
    model = lesson.build(*case[:2], seed=0)
    transformer.replace(model, attend=attend, locate=lambda _: context.positions)
    batch = lesson.batch_of(0, length=LENGTH)
    loss = model(batch[:, context.mine], batch[:, context.mine + 1])
    loss.backward()
    average_in_one_message(model, group, 1 / group.size())
    return loss.detach(), [p.grad for p in model.parameters() if p.requires_grad]


def first_gradients_alone(case):
    """The same of one process."""
    model = lesson.build(*case[:2], seed=0)
    prepared(case[2])(model)
    batch = lesson.batch_of(0, length=LENGTH)
    loss = model(batch[:, :-1], batch[:, 1:])
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.requires_grad]


def assert_first_gradients(found, case):
    """Hold the mean loss of the ranks, and every gradient on each of them, to one process."""
    loss, gradients = first_gradients_alone(case)
    torch.testing.assert_close(torch.stack([mine for mine, _ in found]).mean(), loss, rtol=0, atol=lesson.ATOL)
    for _, mine in found:
        torch.testing.assert_close(mine, gradients, rtol=0, atol=lesson.ATOL)


def right(group, name, source, case, options):
    """Tell whether a version of a file trains as one process does."""
    history = train(group, name, source, case, **options)
    return all(map(lesson.equal, history, alone(*case)))
