"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain.zero import rows

from .grading import Chapter, Graded, Mistake
from .solutions import zero as solutions

CHAPTER = Chapter("zero", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

PLACES, TWICE = "returns places in the parameters", "no number is held twice"
MISSING, EQUAL = "no number is left out", "equal rows, in the order of the ranks"
STEPPED = "every rank has whole parameters after the step"
OWN = "the optimizer steps this rank's pieces once, with summed gradients"
FREED, BYTES = "no gradient is left", "a rank sends as much as one all-reduce of the gradients"
MESSAGES = "a rank sends two messages"
NORM, SCALED = "returns the norm of all gradients", "all gradients are scaled by the same factor, at most 1"
IN_PLACE = "the gradients are scaled in place"
NUMBER = "a rank sends one number"
OUTPUT, X, PIECE = "every rank has its output", "x gets its gradient", "the piece gets its row of the summed gradient"
KEEPS = "between forward and backward a rank has its piece only"
SENT = "forward sends at most one all-gather, backward one more and a reduce-scatter"
ROWS, ONE_MATRIX = "every rank has its rows of all matrices", "each rank orthogonalises one whole matrix"
TWO_WAYS, KEPT = "a rank sends two all-to-alls at most", "the pieces stay what they were"


CHAPTER.changes({
    "rounds down": Mistake("pieces", {MISSING, EQUAL}, at="2 ranks, sizes [1, 4]", says="rank 1: [(1, 1, 3)]",
        old="-(-sum(sizes) // world_size)", new="sum(sizes) // world_size"),
    "gives the tail to the last": Mistake("pieces", {EQUAL}, at="2 ranks, sizes [1, 4]", says="rank 1: [(1, 1, 4)]",
        old="length = -(-sum(sizes) // world_size)\n    first = rank * length",
        new="length = sum(sizes) // world_size\n"
            "    first = rank * length\n"
            "    length = sum(sizes) - first if rank == world_size - 1 else length"),
    "counts along the buffer": Mistake("pieces", {PLACES, MISSING, EQUAL}, at="1 rank, sizes [2, 3]", says="(1, 2, 5)",
        old="(number, begin, end)", new="(number, start + begin, start + end)"),
})


@mistake("pieces", EQUAL, at="2 ranks, sizes [4]", says="rank 1: []")
def keeps_parameters_whole(sizes, rank, world_size):
    return [(number, 0, size) for number, size in enumerate(sizes) if number % world_size == rank]


@mistake("pieces", PLACES, at="1 rank, sizes [3]", says="None, a NoneType")
def returns_nothing(sizes, rank, world_size):
    solutions.my_pieces(sizes, rank, world_size)


CHAPTER.changes({
    "averages": Mistake("step", {STEPPED, OWN}, at="2 ranks, one parameter",
        old="piece.grad = gradient", new="piece.grad = gradient / group.size()"),
    "reduces all and gathers": Mistake("step", {BYTES},
        at="2 ranks, one parameter", says="bytes sent by rank 0 in 2 messages",
        old="(summed,) = comm.reduce_scatter(partial, group)",
        new="summed = comm.all_reduce(partial, group)[group.rank()]"),
    "forgets to gather": Mistake("step", {STEPPED}, at="1 rank, one parameter", says="summed gradient",
        old="row = torch.cat([piece for _, piece in trained])\n"
            "    whole = comm.all_gather(row[None], group)\n"
            "    for (p, _), part in zip(trained, whole.split(lengths, dim=1), strict=True):\n"
            "        p.data = part.flatten()[: p.numel()].view(p.shape)",
        new="for p, _ in trained:"),
    "folds all parameters at once": Mistake("step", {STEPPED, OWN}, at="2 ranks, two parameters",
        old="partial = torch.cat([rows(p.grad, group) for p, _ in trained], dim=1)\n"
            "    (summed,) = comm.reduce_scatter(partial, group)",
        new="flat = rows(torch.cat([p.grad.flatten() for p, _ in trained]), group)\n"
            "    (summed,) = comm.reduce_scatter(flat, group)\n"
            "    summed = functional.pad(summed, (0, sum(lengths) - len(summed)))"),
    "forgets the padding": Mistake("step", {checker.RUNS},
        at="2 ranks, three numbers on two ranks", says="RuntimeError",
        old="rows(p.grad, group)", new="p.grad.flatten().view(group.size(), -1)"),
    "keeps whole gradients": Mistake("step", {FREED},
        at="1 rank, one parameter", says="a gradient at place 0 on rank 0",
        old="p.grad = None", new="pass"),
    "steps twice": Mistake("step", {STEPPED, OWN}, at="1 rank, one parameter", says="[2.5, 1.5] on rank 0",
        old="optimizer.step()", new="optimizer.step()\n    optimizer.step()"),
})


@mistake("step", MESSAGES, at="2 ranks, two parameters", says="2 x reduce_scatter, 2 x all_gather")
def sends_every_parameter_alone(parameters, pieces, optimizer, group):
    trained = [(p, piece) for p, piece in zip(parameters, pieces, strict=True) if p.grad is not None]
    for p, piece in trained:
        (piece.grad,) = comm.reduce_scatter(rows(p.grad, group), group)
    optimizer.step()
    optimizer.zero_grad()
    for p, piece in trained:
        p.data = comm.all_gather(piece[None], group).flatten()[: p.numel()].view(p.shape)
        p.grad = None


@mistake("step", checker.RUNS, at="2 ranks, a frozen parameter", says="rows(p.grad, group)")
def expects_every_gradient(parameters, pieces, optimizer, group):
    torch.cat([rows(p.grad, group) for p in parameters], dim=1)
    solutions.my_step(parameters, pieces, optimizer, group)


CHAPTER.changes({
    "adds norms": Mistake("clip", {NORM, SCALED}, at="2 ranks, 2 numbers on each rank",
        old="comm.all_reduce(squares, group).sqrt()", new="comm.all_reduce(squares.sqrt(), group)"),
    "scales up": Mistake("clip", {SCALED}, at="2 ranks, a norm small enough",
        old="torch.clamp(max_norm / norm, max=1.0)", new="max_norm / norm"),
    "replaces gradients": Mistake("clip", {IN_PLACE}, at="1 rank, 2 numbers", says="another tensor",
        old="    for gradient in gradients:\n        gradient *= torch.clamp(max_norm / norm, max=1.0)",
        new="    for piece in pieces:\n        if piece.grad is not None:\n"
            "            piece.grad = piece.grad * torch.clamp(max_norm / norm, max=1.0)"),
    "scales copies": Mistake("clip", {SCALED}, at="1 rank, 2 numbers", says="max_norm=2",
        old="gradient *= ", new="gradient = gradient * "),
    "invents gradients": Mistake("clip", {SCALED}, at="2 ranks, a frozen piece", says="[0, 0]",
        old="gradients = [",
        new="for piece in pieces:\n"
            "        piece.grad = torch.zeros_like(piece) if piece.grad is None else piece.grad\n"
            "    gradients = ["),
    "sends every piece alone": Mistake("clip", {NUMBER}, at="3 ranks, 2 pieces on each rank", says="2 of 16 bytes",
        old="squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()\n"
            "    norm = comm.all_reduce(squares, group).sqrt()",
        new="norm = sum(comm.all_reduce(gradient.square().sum(), group) for gradient in gradients).sqrt()"),
})


@mistake("clip", checker.RUNS, at="2 ranks, a frozen piece", says="piece.grad.square()")
def expects_gradients(pieces, max_norm, group):
    squares = sum(piece.grad.square().sum() for piece in pieces)
    assert squares >= 0
    return solutions.my_clip(pieces, max_norm, group)


@mistake("clip", NUMBER, at="2 ranks, a frozen piece", says="1 of 48 bytes")
def gathers_everything(pieces, max_norm, group):
    if len(pieces) == 1:
        return solutions.my_clip(pieces, max_norm, group)
    gradients = [piece.grad for piece in pieces if piece.grad is not None]
    norm = comm.all_gather(torch.cat(gradients), group).norm()
    for gradient in gradients:
        gradient *= torch.clamp(max_norm / norm, max=1.0)
    return norm


CHAPTER.changes({
    "keeps the weight": Mistake("gathered_linear", {KEEPS}, at="2 ranks, half of the weight", says="480 bytes on rank",
        old="return functional.linear(x, gather(piece, shape, group))",
        new="ctx.weight = gather(piece, shape, group)\n        return functional.linear(x, ctx.weight)"),
    "averages the row": Mistake("gathered_linear", {PIECE}, at="2 ranks, half of the weight",
        old="weight, row,", new="weight, row / ctx.group.size(),"),
    "reduces the whole weight": Mistake("gathered_linear", {SENT}, at="2 ranks, half of the weight", says="in backward",
        old="(row,) = comm.reduce_scatter(rows(grad.T @ x, ctx.group), ctx.group)",
        new="row = comm.all_reduce(rows(grad.T @ x, ctx.group), ctx.group)[ctx.group.rank()]"),
    "averages the gradient of x": Mistake("gathered_linear", {X}, at="2 ranks, half of the weight",
        old="grad @ weight,", new="grad @ weight / ctx.group.size(),"),
    "saves what it cannot use": Mistake("gathered_linear", {checker.RUNS},
        at="2 ranks, half of the weight", says="RuntimeError",
        old="gather(piece, ctx.shape, ctx.group)", new="piece.view(ctx.shape)"),
    "forgets the padding of the weight": Mistake("gathered_linear", {checker.RUNS},
        at="2 ranks, an odd number of weights", says="RuntimeError",
        old=".flatten()[: shape.numel()].view(shape)", new=".view(shape)"),
})


@mistake("orthogonalize", ROWS, ONE_MATRIX, TWO_WAYS, at="2 ranks, 2 rows of 6")
def orthogonalizes_its_rows(pieces, orthogonalized, group):
    return torch.stack([orthogonalized(piece) for piece in pieces])


@mistake("orthogonalize", ROWS, at="2 ranks, 2 rows of 6")
def joins_rows_of_many_matrices(pieces, orthogonalized, group):
    update = orthogonalized(pieces.flatten(0, 1)).view_as(pieces)
    return comm.all_to_all(comm.all_to_all(update, group), group)


CHAPTER.changes({
    "keeps the whole matrix": Mistake("orthogonalize", {ROWS}, at="2 ranks, 2 rows of 6",
        old="comm.all_to_all(whole.view_as(rows), group)", new="whole.view_as(rows)"),
    "deals rows in stripes": Mistake("orthogonalize", {ROWS}, at="2 ranks, 2 rows of 6",
        old="whole.view_as(rows)", new="whole.unflatten(0, (-1, group.size())).transpose(0, 1)"),
    "gathers the results": Mistake("orthogonalize", {TWO_WAYS},
        at="2 ranks, 2 rows of 6", says="1 x all_to_all, 1 x all_gather",
        old="comm.all_to_all(whole.view_as(rows), group)",
        new="comm.all_gather(whole[None], group).chunk(group.size(), 1)[group.rank()]"),
    "writes into the pieces": Mistake("orthogonalize", {KEPT}, at="1 rank, 2 rows of 3", says="pieces has changed",
        old="comm.all_to_all(whole.view_as(rows), group)",
        new="pieces.copy_(comm.all_to_all(whole.view_as(rows), group))"),
})


def wholes(pieces, group):
    """All matrices, on every rank: [N, rows, columns]."""
    return comm.all_gather(pieces[None], group).transpose(0, 1).flatten(1, 2)


@mistake("orthogonalize", ONE_MATRIX, TWO_WAYS, at="2 ranks, 2 rows of 6", says="each on another matrix")
def works_on_all_matrices(pieces, orthogonalized, group):
    whole = torch.stack([orthogonalized(x) for x in wholes(pieces, group)])
    return whole.chunk(group.size(), 1)[group.rank()]


@mistake("orthogonalize", ONE_MATRIX, TWO_WAYS, at="2 ranks, 2 rows of 6", says="on rank 0")
def leaves_the_work_to_rank_0(pieces, orthogonalized, group):
    whole = wholes(pieces, group)
    if group.rank() == 0:
        whole = torch.stack([orthogonalized(x) for x in whole])
    return comm.broadcast(whole, group).chunk(group.size(), 1)[group.rank()]


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("step")
def exchanges_rows_and_adds_them_up(parameters, pieces, optimizer, group):
    trained = [pair for pair in zip(parameters, pieces, strict=True) if pair[0].grad is not None]
    lengths = [len(piece) for _, piece in trained]
    arrived = comm.all_to_all(torch.cat([rows(p.grad, group) for p, _ in trained], 1), group)
    for (_, piece), gradient in zip(trained, arrived.sum(0).split(lengths), strict=True):
        piece.grad = gradient
    optimizer.step()
    whole = comm.all_gather(torch.cat([piece for _, piece in trained])[None], group)
    for (p, piece), part in zip(trained, whole.split(lengths, 1), strict=True):
        p.detach().copy_(part.flatten()[: p.numel()].view_as(p))
        p.grad = piece.grad = None
