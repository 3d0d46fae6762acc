"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from torch.nn import functional

from shardlab.exercises import checker
from shardlab.plain.tensor_parallel import SumOverRanks
from shardlab.ranks.tensor_parallel import conjugates

from .grading import Chapter, Graded, Mistake
from .solutions import tensor_parallel as solutions

CHAPTER = Chapter("tensor_parallel", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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


CHAPTER.changes({
    "sums gradients": Mistake("gather_from_ranks", {PART, SILENT}, at="2 ranks, one vector", says="[2, 10]",
        old="return grad.chunk(", new="return comm.all_reduce(grad, ctx.group).chunk("),
    "sums into what it was given": Mistake("gather_from_ranks", {SAME, SILENT},
        at="2 ranks, one vector", says="the gradient that came in has changed",
        old="return grad.chunk(",
        new="comm.start_all_reduce(grad, ctx.group)()\n"
            "        grad = grad / ctx.group.size()\n"
            "        return grad.chunk("),
    "gives the first part to all": Mistake("gather_from_ranks", {PART}, at="2 ranks, one vector", says="on rank 1",
        old="[ctx.group.rank()]", new="[0]"),
    "joins along the first dim": Mistake("gather_from_ranks", {JOINED, PART},
        at="2 ranks, two vectors", says="instead of [2, 4]",
        old="torch.cat([*comm.all_gather(x[None], group)], dim=-1)", new="comm.all_gather(x, group)"),
    "sums zeros": Mistake("gather_from_ranks", {GATHERS}, at="2 ranks, one vector", says="(1 x all_reduce) in forward",
        old="return torch.cat([*comm.all_gather(x[None], group)], dim=-1)",
        new="whole = x.new_zeros(group.size(), *x.shape)\n"
            "        whole[group.rank()] = x\n"
            "        return torch.cat([*comm.all_reduce(whole, group)], dim=-1)"),
    "has a gate for each layer": Mistake("columns", {COLUMN_BYTES},
        at="3 ranks, q, k and v", says="(3 x all_reduce) in backward",
        old="x = CopyToRanks.apply(x, group)\n    return [functional.linear(x,",
        new="return [functional.linear(CopyToRanks.apply(x, group),"),
    "has no gate": Mistake("columns", {X, COLUMN_BYTES}, at="2 ranks, one vector",
        old="    x = CopyToRanks.apply(x, group)\n", new=""),
    "gathers the outputs": Mistake("columns", {OWN, WEIGHTS, X, COLUMN_BYTES},
        at="2 ranks, one vector", says="of shape [12] instead of [6]",
        old="functional.linear(x, linear.weight, linear.bias)",
        new="Joined.apply(functional.linear(x, linear.weight, linear.bias), group)"),
    "forgets the biases": Mistake("columns", {OWN, WEIGHTS}, at="1 rank, one vector",
        old=", linear.bias)", new=")"),
    "copies the weights too": Mistake("columns", {WEIGHTS, COLUMN_BYTES},
        at="2 ranks, one vector", says="weight 0.grad",
        old="linear.weight,", new="CopyToRanks.apply(linear.weight, group),"),
    "sums every layer": Mistake("rows", {ROW_BYTES},
        at="3 ranks, attention and MLP", says="(2 x all_reduce) in forward",
        old="SumOverRanks.apply(sum(functional.linear(x, linear.weight) for linear, x in pairs), group)",
        new="sum(SumOverRanks.apply(functional.linear(x, linear.weight), group) for linear, x in pairs)"),
    "expects biases": Mistake("rows", {checker.RUNS}, at="2 ranks, no bias", says="NoneType",
        old=" if linear.bias is not None", new=""),
    "sums in both passes": Mistake("rows", {GRADIENTS, ROW_BYTES}, at="2 ranks, one vector", says="x 0.grad",
        old="sum(functional.linear(x, linear.weight) for linear, x in pairs)",
        new="CopyToRanks.apply(sum(functional.linear(x, linear.weight) for linear, x in pairs), group)"),
})


@mistake("rows", OUTPUT, at="2 ranks, one vector", says="biases [2, 1, 3]")
def counts_biases_on_every_rank(linears, group, xs):
    pairs = zip(linears, xs, strict=True)
    return SumOverRanks.apply(sum(functional.linear(x, each.weight, each.bias) for each, x in pairs), group)


@mistake("rows", GRADIENTS, at="2 ranks, one vector", says="bias 0.grad")
def adds_biases_on_the_first_rank(linears, group, xs):
    pairs = zip(linears, xs, strict=True)
    mine = [functional.linear(x, each.weight, None if group.rank() else each.bias) for each, x in pairs]
    return SumOverRanks.apply(sum(mine), group)


@mistake("rows", ROW_BYTES, at="2 ranks, one vector")
def gathers_the_inputs(linears, group, xs):
    y = 0
    for linear, x in zip(linears, xs, strict=True):
        whole = conjugates.GatherFromRanks.apply(x, group, -1)
        matrix = conjugates.GatherFromRanks.apply(linear.weight, group, -1)
        y = y + functional.linear(whole, matrix, linear.bias)
    return y


CHAPTER.changes({
    "forgets to smooth": Mistake("smoothed_loss", {LOSS, LOGITS}, at="1 rank, smoothed",
        old="wanted = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / words", new="wanted = chosen"),
    "averages over its own words": Mistake("smoothed_loss", {LOSS, LOGITS}, at="2 ranks, smoothed",
        old="logits.sum(-1) / words", new="logits.mean(-1)"),
    "sums twice": Mistake("smoothed_loss", {LOSS_BYTES}, at="2 ranks, small logits", says="(4 x all_reduce) in forward",
        old="wanted = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / words\n"
            "    return total.log() - SumOverRanks.apply(wanted, group)",
        new="everything = SumOverRanks.apply(logits.sum(-1), group) / words\n"
            "    return total.log() - (1 - smoothing) * SumOverRanks.apply(chosen, group) - smoothing * everything"),
    "shifts by nothing": Mistake("smoothed_loss", {LOSS, LOGITS}, at="2 ranks, logits around 1000", says="inf",
        old="    logits = logits - top[..., None]\n", new=""),
    "shifts by its own highest": Mistake("smoothed_loss", {LOSS, LOGITS}, at="2 ranks, small logits",
        old='comm.all_reduce(logits.detach().amax(-1), group, "max")', new="logits.detach().amax(-1)"),
    "marks targets among all words": Mistake("smoothed_loss", {LARGE}, at="2 ranks, small logits",
        old="row, here = ", new="functional.one_hot(targets, 24)\n    row, here = "),
    "sums gradients too": Mistake("smoothed_loss", {LOGITS, LOSS_BYTES}, at="2 ranks, small logits", says="logits.grad",
        old="top = ", new="logits = CopyToRanks.apply(logits, group)\n    top = "),
    "counts only its own targets": Mistake("smoothed_loss", {LOSS}, at="2 ranks, small logits",
        old="wanted = (1 - smoothing) * chosen + smoothing * logits.sum(-1) / words\n"
            "    return total.log() - SumOverRanks.apply(wanted, group)",
        new="everything = SumOverRanks.apply(logits.sum(-1), group) / words\n"
            "    return total.log() - (1 - smoothing) * chosen - smoothing * everything"),
})


@mistake("smoothed_loss", LARGE, LOSS_BYTES, at="2 ranks, small logits", says="one of 144 numbers")
def gathers_all_logits(logits, targets, smoothing, group):
    whole = conjugates.GatherFromRanks.apply(logits, group, -1).movedim(-1, 1)
    return functional.cross_entropy(whole, targets, reduction="none", label_smoothing=smoothing)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("columns")
def yields_outputs(linears, group, x):
    x = solutions.CopyToRanks.apply(x, group)
    for linear in linears:
        yield linear(x)
