"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from shardlab.ranks import comm
from shardlab.ranks.tensor_parallel import conjugates
from shardlab.ranks.tensor_parallel.conjugates import CopyToRanks, SumOverRanks

from .grading import Chapter, Graded
from .solutions import tensor_parallel as solutions

CHAPTER = Chapter("tensor_parallel", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

SAME = "inputs and incoming gradients stay what they were"
SUM = "the gradient is the sum over the ranks of the group"
COPY_BYTES = "forward sends nothing, backward one all-reduce"
OWN, WEIGHTS = "a rank has its own outputs", "its weight and bias get their gradients"
X, COLUMN_BYTES = "x gets the gradient of the uncut layer", "forward sends nothing, backward one all-reduce of x"
OUTPUT, GRADIENTS = "every rank has the output of the uncut layer", "x, weight and bias get their gradients"
ROW_BYTES = "forward sends one all-reduce of the output, backward nothing"
LOSS, LOGITS = "every rank has torch's loss of every token", "a rank's logits get their gradient"
LARGE = "no rank makes a tensor larger than its own logits"
LOSS_BYTES = "a rank sends no more than three numbers for each token"


def copying(backward):
    """An autograd function that copies, with this backward."""

    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Wrong", (torch.autograd.Function,), members).apply


def in_place(ctx, grad):
    comm.start_all_reduce(grad, ctx.group)()
    return grad, None


@mistake("copy_to_ranks", SUM, SAME, at="2 ranks, beside a residual", says="x + my_copy_to_ranks(x)")
def sums_into_what_it_was_given(x, group):
    return copying(in_place)(x, group)


@mistake("copy_to_ranks", SUM, at="2 ranks, one vector")
def averages(x, group):
    return copying(lambda ctx, grad: (comm.all_reduce(grad, ctx.group) / ctx.group.size(), None))(x, group)


@mistake("copy_to_ranks", SUM, COPY_BYTES, at="4 ranks in groups of 2")
def asks_everyone(x, group):
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total)
        dist.all_reduce(total.clone(), group=ctx.group)
        return total, None

    return copying(backward)(x, group)


@mistake("copy_to_ranks", COPY_BYTES, at="3 ranks, one vector", says="bytes sent by rank 0")
def gathers_to_sum(x, group):
    return copying(lambda ctx, grad: (comm.all_gather(grad[None], ctx.group).sum(0), None))(x, group)


@mistake("column_linear", OWN, WEIGHTS, X, COLUMN_BYTES, at="2 ranks, one vector", says="shape [12] instead of [6]")
def gathers_the_outputs(x, weight, bias, group):
    y = F.linear(CopyToRanks.apply(x, group), weight, bias)
    return conjugates.GatherFromRanks.apply(y, group, -1)


@mistake("column_linear", OWN, WEIGHTS, at="1 rank, one vector")
def forgets_the_bias(x, weight, bias, group):
    return F.linear(CopyToRanks.apply(x, group), weight)


@mistake("column_linear", WEIGHTS, COLUMN_BYTES, at="2 ranks, one vector", says="weight.grad")
def copies_the_weight_too(x, weight, bias, group):
    return F.linear(CopyToRanks.apply(x, group), CopyToRanks.apply(weight, group), bias)


@mistake("row_linear", OUTPUT, at="2 ranks, one vector", says="bias [4, 3, 2]")
def counts_the_bias_on_every_rank(x, weight, bias, group):
    return SumOverRanks.apply(F.linear(x, weight, bias), group) + 0 * bias.sum()


@mistake("row_linear", GRADIENTS, at="2 ranks, one vector", says="bias.grad")
def adds_the_bias_on_the_first_rank(x, weight, bias, group):
    return SumOverRanks.apply(F.linear(x, weight, bias if group.rank() == 0 else None), group)


@mistake("row_linear", GRADIENTS, ROW_BYTES, at="2 ranks, one vector", says="x.grad")
def sums_in_both_passes(x, weight, bias, group):
    return SumOverRanks.apply(F.linear(CopyToRanks.apply(x, group), CopyToRanks.apply(weight, group)), group) + bias


@mistake("row_linear", ROW_BYTES, at="2 ranks, one vector")
def gathers_the_inputs(x, weight, bias, group):
    whole = conjugates.GatherFromRanks.apply(x, group, -1)
    matrix = conjugates.GatherFromRanks.apply(weight, group, -1)
    return F.linear(whole, matrix, bias)


def pieces(logits, targets, group):
    """What all solutions share: the target's column on its rank, and who has it."""
    size = logits.shape[-1]
    mine = targets // size == group.rank()
    return torch.where(mine, targets % size, 0)[:, None], mine


@mistake("vocab_parallel_cross_entropy", LOSS, LOGITS, at="2 ranks, logits around 1000", says="inf")
def shifts_by_nothing(logits, targets, group):
    column, mine = pieces(logits, targets, group)
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    return total.log() - SumOverRanks.apply(logits.gather(1, column)[:, 0] * mine, group)


@mistake("vocab_parallel_cross_entropy", LOSS, LOGITS, at="2 ranks, small logits")
def shifts_by_its_own_highest(logits, targets, group):
    column, mine = pieces(logits, targets, group)
    shifted = logits - logits.detach().amax(-1)[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(-1), group)
    return total.log() - SumOverRanks.apply(shifted.gather(1, column)[:, 0] * mine, group)


@mistake("vocab_parallel_cross_entropy", LARGE, LOSS_BYTES, at="2 ranks, small logits", says="one of 120 numbers")
def gathers_all_logits(logits, targets, group):
    whole = conjugates.GatherFromRanks.apply(logits, group, -1)
    return F.cross_entropy(whole, targets, reduction="none")


@mistake("vocab_parallel_cross_entropy", LARGE, at="2 ranks, small logits")
def marks_targets_among_all_words(logits, targets, group):
    size = logits.shape[-1]
    first = group.rank() * size
    marks = F.one_hot(targets, 24)[:, first : first + size]
    highest = comm.all_reduce(logits.detach().amax(-1), group, "max")
    shifted = logits - highest[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(-1), group)
    return total.log() - SumOverRanks.apply((shifted * marks).sum(-1), group)


@mistake("vocab_parallel_cross_entropy", LOGITS, LOSS_BYTES, at="2 ranks, small logits", says="logits.grad")
def sums_gradients_too(logits, targets, group):
    return solutions.my_vocab_parallel_cross_entropy(CopyToRanks.apply(logits, group), targets, group)


@mistake("vocab_parallel_cross_entropy", LOSS, at="2 ranks, small logits")
def counts_only_its_own_targets(logits, targets, group):
    column, mine = pieces(logits, targets, group)
    highest = comm.all_reduce(logits.detach().amax(-1), group, "max")
    shifted = logits - highest[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(-1), group)
    return total.log() - shifted.gather(1, column)[:, 0] * mine
