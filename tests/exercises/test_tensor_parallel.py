"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch
from torch.nn import functional

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks, find
from shardlab.ranks.tensor_parallel import conjugates

from .grading import Chapter, Graded
from .solutions import tensor_parallel as solutions

CHAPTER = Chapter("tensor_parallel", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

SAME = "inputs and incoming gradients stay what they were"
JOINED = "every rank has all outputs, joined along the last dim"
PART = "a rank's outputs get their part of the gradient"
GATHERS, SILENT = "forward sends one all-gather", "backward sends nothing"
OWN, WEIGHTS = "a rank has its own outputs of every layer", "weights and biases get their gradients"
X, COLUMN_BYTES = "x gets the gradient of the uncut layers", "forward sends nothing, backward one all-reduce of x"
OUTPUT = "every rank has the output of the uncut layers"
GRADIENTS = "inputs, weights and biases get their gradients"
ROW_BYTES = "forward sends one all-reduce of the output, backward nothing"
LOSS, LOGITS = "every rank has torch's loss of every token", "a rank's logits get their gradient"
LARGE = "no rank makes a tensor larger than its own logits"
LOSS_BYTES = "a rank sends no more than three numbers for each token"


def joined(x, group):
    return torch.cat([*comm.all_gather(x[None], group)], dim=-1)


def gathering(backward, forward=joined):
    """An autograd function that gathers, with this backward."""

    def keep(ctx, x, group):
        ctx.group = group
        return forward(x, group)

    members = {"forward": staticmethod(keep), "backward": staticmethod(backward)}
    return type("Wrong", (torch.autograd.Function,), members).apply


def part(ctx, grad):
    return grad.chunk(ctx.group.size(), dim=-1)[ctx.group.rank()], None


@mistake("gather_from_ranks", PART, SILENT, at="2 ranks, one vector", says="[2, 10]")
def sums_gradients(x, group):
    def backward(ctx, grad):
        return part(ctx, comm.all_reduce(grad, ctx.group))

    return gathering(backward)(x, group)


@mistake("gather_from_ranks", SAME, SILENT, at="2 ranks, one vector", says="the gradient that came in has changed")
def sums_into_what_it_was_given(x, group):
    def backward(ctx, grad):
        comm.start_all_reduce(grad, ctx.group)()
        return part(ctx, grad / ctx.group.size())

    return gathering(backward)(x, group)


@mistake("gather_from_ranks", PART, at="2 ranks, one vector", says="on rank 1")
def gives_the_first_part_to_all(x, group):
    def backward(ctx, grad):
        return grad.chunk(ctx.group.size(), dim=-1)[0], None

    return gathering(backward)(x, group)


@mistake("gather_from_ranks", JOINED, PART, at="2 ranks, two vectors", says="instead of [2, 4]")
def joins_along_the_first_dim(x, group):
    return gathering(part, comm.all_gather)(x, group)


@mistake("gather_from_ranks", GATHERS, at="2 ranks, one vector", says="(1 x all_reduce) in forward")
def sums_zeros(x, group):
    def padded(x, group):
        whole = x.new_zeros(group.size(), *x.shape)
        whole[group.rank()] = x
        return torch.cat([*comm.all_reduce(whole, group)], dim=-1)

    return gathering(part, padded)(x, group)


def columns_of(linears, x):
    return [functional.linear(x, linear.weight, linear.bias) for linear in linears]


@mistake("columns", COLUMN_BYTES, at="3 ranks, q, k and v", says="(3 x all_reduce) in backward")
def has_a_gate_for_each_layer(linears, group, x):
    return [columns_of([linear], CopyToRanks.apply(x, group))[0] for linear in linears]


@mistake("columns", X, COLUMN_BYTES, at="2 ranks, one vector")
def has_no_gate(linears, group, x):
    return columns_of(linears, x)


@mistake("columns", OWN, WEIGHTS, X, COLUMN_BYTES, at="2 ranks, one vector", says="of shape [12] instead of [6]")
def gathers_the_outputs(linears, group, x):
    made = columns_of(linears, CopyToRanks.apply(x, group))
    return [conjugates.GatherFromRanks.apply(y, group, -1) for y in made]


@mistake("columns", OWN, WEIGHTS, at="1 rank, one vector")
def forgets_the_biases(linears, group, x):
    x = CopyToRanks.apply(x, group)
    return [functional.linear(x, linear.weight) for linear in linears]


@mistake("columns", WEIGHTS, COLUMN_BYTES, at="2 ranks, one vector", says="weight 0.grad")
def copies_the_weights_too(linears, group, x):
    x = CopyToRanks.apply(x, group)
    return [functional.linear(x, CopyToRanks.apply(each.weight, group), each.bias) for each in linears]


def partial(linears, xs):
    """The sum of all layers' products on this rank."""
    return sum(functional.linear(x, linear.weight) for linear, x in zip(linears, xs, strict=True))


def biases(linears):
    return [linear.bias for linear in linears if linear.bias is not None]


@mistake("rows", ROW_BYTES, at="3 ranks, attention and MLP", says="(2 x all_reduce) in forward")
def sums_every_layer(linears, group, xs):
    pairs = zip(linears, xs, strict=True)
    made = [SumOverRanks.apply(functional.linear(x, linear.weight), group) for linear, x in pairs]
    return sum([*made, *biases(linears)])


@mistake("rows", OUTPUT, at="2 ranks, one vector", says="biases [2, 1, 3]")
def counts_biases_on_every_rank(linears, group, xs):
    return SumOverRanks.apply(sum([partial(linears, xs), *biases(linears)]), group)


@mistake("rows", GRADIENTS, at="2 ranks, one vector", says="bias 0.grad")
def adds_biases_on_the_first_rank(linears, group, xs):
    mine = biases(linears) if group.rank() == 0 else []
    return SumOverRanks.apply(sum([partial(linears, xs), *mine]), group)


@mistake("rows", checker.RUNS, at="2 ranks, no bias", says="NoneType")
def expects_biases(linears, group, xs):
    y = SumOverRanks.apply(partial(linears, xs), group)
    return sum([y, *(linear.bias for linear in linears)])


@mistake("rows", GRADIENTS, ROW_BYTES, at="2 ranks, one vector", says="x 0.grad")
def sums_in_both_passes(linears, group, xs):
    y = CopyToRanks.apply(partial(linears, xs), group)
    return sum([SumOverRanks.apply(y, group), *biases(linears)])


@mistake("rows", ROW_BYTES, at="2 ranks, one vector")
def gathers_the_inputs(linears, group, xs):
    y = 0
    for linear, x in zip(linears, xs, strict=True):
        whole = conjugates.GatherFromRanks.apply(x, group, -1)
        matrix = conjugates.GatherFromRanks.apply(linear.weight, group, -1)
        y = y + functional.linear(whole, matrix, linear.bias)
    return y


def words_of(logits, targets, group):
    """The target's logit where a rank has it, else 0; and the number of words."""
    row, here = find(targets, logits.shape[-1], group)
    return logits.gather(-1, row[..., None])[..., 0] * here, logits.shape[-1] * group.size()


def shifted(logits, group):
    return logits - comm.all_reduce(logits.detach().amax(-1), group, "max")[..., None]


def finished(logits, targets, smoothing, group):
    """The solution, once the logits are shifted."""
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    chosen, words = words_of(logits, targets, group)
    wanted = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / words
    return total.log() - SumOverRanks.apply(wanted, group)


@mistake("smoothed_loss", LOSS, LOGITS, at="1 rank, smoothed")
def forgets_to_smooth(logits, targets, smoothing, group):
    return finished(shifted(logits, group), targets, 0.0, group)


@mistake("smoothed_loss", LOSS, LOGITS, at="2 ranks, smoothed")
def averages_over_its_own_words(logits, targets, smoothing, group):
    logits = shifted(logits, group)
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    chosen, _ = words_of(logits, targets, group)
    wanted = (1 - smoothing) * chosen + smoothing * logits.mean(-1)
    return total.log() - SumOverRanks.apply(wanted, group)


@mistake("smoothed_loss", LOSS_BYTES, at="2 ranks, small logits", says="(4 x all_reduce) in forward")
def sums_twice(logits, targets, smoothing, group):
    logits = shifted(logits, group)
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    chosen, words = words_of(logits, targets, group)
    everything = SumOverRanks.apply(logits.sum(-1), group) / words
    wanted = (1 - smoothing) * SumOverRanks.apply(chosen, group) + smoothing * everything
    return total.log() - wanted


@mistake("smoothed_loss", LOSS, LOGITS, at="2 ranks, logits around 1000", says="inf")
def shifts_by_nothing(logits, targets, smoothing, group):
    return finished(logits, targets, smoothing, group)


@mistake("smoothed_loss", LOSS, LOGITS, at="2 ranks, small logits")
def shifts_by_its_own_highest(logits, targets, smoothing, group):
    return finished(logits - logits.detach().amax(-1)[..., None], targets, smoothing, group)


@mistake("smoothed_loss", LARGE, LOSS_BYTES, at="2 ranks, small logits", says="one of 144 numbers")
def gathers_all_logits(logits, targets, smoothing, group):
    whole = conjugates.GatherFromRanks.apply(logits, group, -1).movedim(-1, 1)
    return functional.cross_entropy(whole, targets, reduction="none", label_smoothing=smoothing)


@mistake("smoothed_loss", LARGE, at="2 ranks, small logits")
def marks_targets_among_all_words(logits, targets, smoothing, group):
    functional.one_hot(targets, 24)
    return solutions.my_smoothed_loss(logits, targets, smoothing, group)


@mistake("smoothed_loss", LOGITS, LOSS_BYTES, at="2 ranks, small logits", says="logits.grad")
def sums_gradients_too(logits, targets, smoothing, group):
    logits = CopyToRanks.apply(logits, group)
    return solutions.my_smoothed_loss(logits, targets, smoothing, group)


@mistake("smoothed_loss", LOSS, at="2 ranks, small logits")
def counts_only_its_own_targets(logits, targets, smoothing, group):
    logits = shifted(logits, group)
    total = SumOverRanks.apply(logits.exp().sum(-1), group)
    chosen, words = words_of(logits, targets, group)
    everything = SumOverRanks.apply(logits.sum(-1), group) / words
    return total.log() - (1 - smoothing) * chosen - smoothing * everything
