"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch
from torch.nn import functional as F

from shardlab.exercises import checker
from shardlab.ranks import comm

from .grading import Chapter, Graded
from .solutions import zero as solutions

CHAPTER = Chapter("zero", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

PLACES, TWICE = "returns places in the parameters", "no number is held twice"
MISSING, EQUAL = "no number is left out", "equal pieces, in the order of the ranks"
STEPPED, OWN = "every rank has all parameters after the step", "a rank updates its own piece, once"
SAME, BYTES = (
    "parameters and gradients stay what they were",
    "a rank sends no more than one all-reduce of the gradients",
)
NORM, SCALED = "returns the norm of all gradients", "all pieces are scaled by the same factor, at most 1"
NUMBER = "a rank sends one number"
OUTPUT, X, PIECE = "every rank has its output", "x gets its gradient", "the piece gets its rows of the mean gradient"
FORGETS = "between forward and backward a rank has its piece only"
SAID = "forward sends one all-gather, backward one more and a reduce-scatter"


@mistake("pieces", MISSING, EQUAL, at="2 ranks, sizes [1, 4]", says="rank 1: [(1, 1, 3)]")
def rounds_down(sizes, rank, world_size):
    length = sum(sizes) // world_size
    return cut(sizes, rank * length, (rank + 1) * length)


@mistake("pieces", EQUAL, at="2 ranks, sizes [1, 4]", says="rank 1: [(1, 1, 4)]")
def gives_the_tail_to_the_last(sizes, rank, world_size):
    length = sum(sizes) // world_size
    return cut(sizes, rank * length, sum(sizes) if rank == world_size - 1 else (rank + 1) * length)


@mistake("pieces", EQUAL, at="2 ranks, sizes [4]", says="rank 1: []")
def keeps_parameters_whole(sizes, rank, world_size):
    return [(number, 0, size) for number, size in enumerate(sizes) if number % world_size == rank]


@mistake("pieces", PLACES, MISSING, EQUAL, at="1 rank, sizes [2, 3]", says="(1, 2, 5)")
def counts_along_the_buffer(sizes, rank, world_size):
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    pieces = solutions.my_pieces(sizes, rank, world_size)
    return [(number, starts[number] + begin, starts[number] + end) for number, begin, end in pieces]


@mistake("pieces", PLACES, at="1 rank, sizes [3]", says="None, a NoneType")
def returns_nothing(sizes, rank, world_size):
    solutions.my_pieces(sizes, rank, world_size)


def cut(sizes, first, last):
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    spans = [(max(first - start, 0), min(last - start, size)) for start, size in zip(starts, sizes, strict=True)]
    return [(number, *span) for number, span in enumerate(spans) if span[0] < span[1]]


@mistake("step", STEPPED, OWN, at="2 ranks, 1 number for each")
def sums(parameters, gradients, update, group):
    piece = parameters.chunk(group.size())[group.rank()]
    return comm.all_gather(update(piece, comm.reduce_scatter(gradients, group)), group)


@mistake("step", BYTES, at="2 ranks, 1 number for each", says="24 bytes sent by rank 0")
def reduces_all_and_gathers(parameters, gradients, update, group):
    n, rank = group.size(), group.rank()
    mean = comm.all_reduce(gradients, group) / n
    return comm.all_gather(update(parameters.chunk(n)[rank], mean.chunk(n)[rank]), group)


@mistake("step", STEPPED, at="2 ranks, 1 number for each")
def returns_its_piece(parameters, gradients, update, group):
    return update(parameters.chunk(group.size())[group.rank()], comm.reduce_scatter(gradients, group) / group.size())


@mistake("step", SAME, at="1 rank, 2 numbers", says="others on rank 0")
def steps_in_place(parameters, gradients, update, group):
    parameters.copy_(solutions.my_step(parameters, gradients, update, group))
    return parameters


@mistake("step", OWN, at="2 ranks, 1 number for each", says="one update")
def updates_all(parameters, gradients, update, group):
    mean = comm.all_gather(comm.reduce_scatter(gradients, group) / group.size(), group)
    return update(parameters, mean)


@mistake("clip", NORM, SCALED, at="2 ranks, 2 numbers on each rank")
def adds_norms(pieces, max_norm, group):
    norm = comm.all_reduce(torch.stack([piece.norm() for piece in pieces]).norm(), group)
    for piece in pieces:
        piece *= torch.clamp(max_norm / norm, max=1.0)
    return norm


@mistake("clip", SCALED, at="2 ranks, a norm small enough")
def scales_up(pieces, max_norm, group):
    norm = comm.all_reduce(sum(piece.square().sum() for piece in pieces), group).sqrt()
    for piece in pieces:
        piece *= max_norm / norm
    return norm


@mistake("clip", NUMBER, at="3 ranks, 2 pieces on each rank", says="2 of 16 bytes")
def sends_every_piece_alone(pieces, max_norm, group):
    norm = sum(comm.all_reduce(piece.square().sum(), group) for piece in pieces).sqrt()
    for piece in pieces:
        piece *= torch.clamp(max_norm / norm, max=1.0)
    return norm


@mistake("clip", NUMBER, at="1 rank, 2 numbers", says="1 of 16 bytes")
def gathers_everything(pieces, max_norm, group):
    norm = comm.all_gather(torch.cat(pieces), group).norm()
    for piece in pieces:
        piece *= torch.clamp(max_norm / norm, max=1.0)
    return norm


def linear(forward, backward):
    """A linear layer of these two passes."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Wrong", (torch.autograd.Function,), members).apply


def keep(ctx, x, piece, group):
    ctx.save_for_backward(x, piece)
    ctx.group = group
    return F.linear(x, comm.all_gather(piece, group))


@mistake("gathered_linear", FORGETS, at="2 ranks, half of the rows", says="480 bytes on rank")
def keeps_the_weight(x, piece, group):
    def forward(ctx, x, piece, group):
        weight = comm.all_gather(piece, group)
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return F.linear(x, weight)

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, comm.reduce_scatter(grad.T @ x, ctx.group) / ctx.group.size(), None

    return linear(forward, backward)(x, piece, group)


@mistake("gathered_linear", PIECE, at="2 ranks, half of the rows")
def forgets_to_divide(x, piece, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        return grad @ comm.all_gather(piece, ctx.group), comm.reduce_scatter(grad.T @ x, ctx.group), None

    return linear(keep, backward)(x, piece, group)


@mistake("gathered_linear", SAID, at="2 ranks, half of the rows", says="in backward")
def reduces_the_whole_weight(x, piece, group):
    def backward(ctx, grad):
        (x, piece), n = ctx.saved_tensors, ctx.group.size()
        mean = comm.all_reduce(grad.T @ x, ctx.group) / n
        return grad @ comm.all_gather(piece, ctx.group), mean.chunk(n)[ctx.group.rank()], None

    return linear(keep, backward)(x, piece, group)


@mistake("gathered_linear", X, at="2 ranks, half of the rows")
def averages_the_gradient_of_x_too(x, piece, group):
    def backward(ctx, grad):
        (x, piece), n = ctx.saved_tensors, ctx.group.size()
        return grad @ comm.all_gather(piece, ctx.group) / n, comm.reduce_scatter(grad.T @ x, ctx.group) / n, None

    return linear(keep, backward)(x, piece, group)


@mistake("gathered_linear", checker.RUNS, at="2 ranks, half of the rows", says="RuntimeError")
def saves_what_it_cannot_use(x, piece, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        return grad @ piece, grad.T @ x, None

    return linear(keep, backward)(x, piece, group)
