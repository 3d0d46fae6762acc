"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch
from torch.nn import functional

from shardlab import comm
from shardlab.exercises import checker
from shardlab.plain.zero import rows

from .grading import Chapter, Graded
from .solutions import zero as solutions

CHAPTER = Chapter("zero", solutions)
mistake = CHAPTER.mistake


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
NUMBER = "a rank sends one number"
OUTPUT, X, PIECE = "every rank has its output", "x gets its gradient", "the piece gets its row of the summed gradient"
KEEPS = "between forward and backward a rank has its piece only"
SENT = "forward sends at most one all-gather, backward one more and a reduce-scatter"
ROWS, ONE_MATRIX = "every rank has its rows of all matrices", "each rank orthogonalises one whole matrix"
TWO_WAYS, KEPT = "a rank sends two all-to-alls at most", "the pieces stay what they were"


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


def trained(parameters, pieces):
    """Pairs of a parameter and its piece, without the frozen ones."""
    return [(p, piece) for p, piece in zip(parameters, pieces, strict=True) if p.grad is not None]


def gather(pairs, group):
    """Make the parameters whole, in one message, and free their gradients."""
    lengths = [piece.numel() for _, piece in pairs]
    whole = comm.all_gather(torch.cat([piece for _, piece in pairs])[None], group)
    for (p, _), part in zip(pairs, whole.split(lengths, dim=1), strict=True):
        p.data = part.flatten()[: p.numel()].view(p.shape)
        p.grad = None


def reduce(pairs, group, scale=1.0):
    """Give the pieces their rows of the summed gradients, in one message."""
    partial = torch.cat([rows(p.grad, group) for p, _ in pairs], dim=1)
    (summed,) = comm.reduce_scatter(partial, group)
    lengths = [piece.numel() for _, piece in pairs]
    for (_, piece), gradient in zip(pairs, summed.split(lengths), strict=True):
        piece.grad = scale * gradient


def finish(pairs, optimizer, group):
    optimizer.step()
    optimizer.zero_grad()
    gather(pairs, group)


@mistake("step", STEPPED, OWN, at="2 ranks, one parameter")
def averages(parameters, pieces, optimizer, group):
    pairs = trained(parameters, pieces)
    reduce(pairs, group, 1 / group.size())
    finish(pairs, optimizer, group)


@mistake("step", BYTES, at="2 ranks, one parameter", says="bytes sent by rank 0 in 2 messages")
def reduces_all_and_gathers(parameters, pieces, optimizer, group):
    pairs = trained(parameters, pieces)
    flat = torch.cat([rows(p.grad, group) for p, _ in pairs], dim=1)
    summed = comm.all_reduce(flat, group)[group.rank()]
    lengths = [piece.numel() for _, piece in pairs]
    for (_, piece), gradient in zip(pairs, summed.split(lengths), strict=True):
        piece.grad = gradient
    finish(pairs, optimizer, group)


@mistake("step", MESSAGES, at="2 ranks, two parameters", says="2 x reduce_scatter, 2 x all_gather")
def sends_every_parameter_alone(parameters, pieces, optimizer, group):
    pairs = trained(parameters, pieces)
    for pair in pairs:
        reduce([pair], group)
    optimizer.step()
    optimizer.zero_grad()
    for pair in pairs:
        gather([pair], group)


@mistake("step", STEPPED, at="1 rank, one parameter", says="summed gradient")
def forgets_to_gather(parameters, pieces, optimizer, group):
    pairs = trained(parameters, pieces)
    reduce(pairs, group)
    optimizer.step()
    optimizer.zero_grad()
    for p, _ in pairs:
        p.grad = None


@mistake("step", STEPPED, OWN, at="2 ranks, two parameters")
def folds_all_parameters_at_once(parameters, pieces, optimizer, group):
    """One flat buffer, of which row r is not the row r of each parameter."""
    pairs = trained(parameters, pieces)
    flat = rows(torch.cat([p.grad.flatten() for p, _ in pairs]), group)
    (summed,) = comm.reduce_scatter(flat, group)
    lengths = [piece.numel() for _, piece in pairs]
    padded = torch.cat([summed, summed.new_zeros(sum(lengths) - len(summed))])
    for (_, piece), gradient in zip(pairs, padded.split(lengths), strict=True):
        piece.grad = gradient
    finish(pairs, optimizer, group)


@mistake("step", checker.RUNS, at="2 ranks, three numbers on two ranks", says="RuntimeError")
def forgets_the_padding(parameters, pieces, optimizer, group):
    for p, _ in trained(parameters, pieces):
        p.grad.flatten().view(group.size(), -1)
    solutions.my_step(parameters, pieces, optimizer, group)


@mistake("step", checker.RUNS, at="2 ranks, a frozen parameter", says="rows(p.grad, group)")
def expects_every_gradient(parameters, pieces, optimizer, group):
    torch.cat([rows(p.grad, group) for p in parameters], dim=1)
    solutions.my_step(parameters, pieces, optimizer, group)


@mistake("step", FREED, at="1 rank, one parameter", says="a gradient at place 0 on rank 0")
def keeps_whole_gradients(parameters, pieces, optimizer, group):
    gradients = [p.grad for p in parameters]
    solutions.my_step(parameters, pieces, optimizer, group)
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient


@mistake("step", STEPPED, OWN, at="1 rank, one parameter", says="[2.5, 1.5] on rank 0")
def steps_twice(parameters, pieces, optimizer, group):
    pairs = trained(parameters, pieces)
    reduce(pairs, group)
    optimizer.step()
    finish(pairs, optimizer, group)


def present(pieces):
    return [piece.grad for piece in pieces if piece.grad is not None]


def scale(pieces, factor):
    for gradient in present(pieces):
        gradient *= factor


@mistake("clip", NORM, SCALED, at="2 ranks, 2 numbers on each rank")
def adds_norms(pieces, max_norm, group):
    norm = comm.all_reduce(torch.stack([g.norm() for g in present(pieces)]).norm(), group)
    scale(pieces, torch.clamp(max_norm / norm, max=1.0))
    return norm


@mistake("clip", SCALED, at="2 ranks, a norm small enough")
def scales_up(pieces, max_norm, group):
    norm = comm.all_reduce(sum(g.square().sum() for g in present(pieces)), group).sqrt()
    scale(pieces, max_norm / norm)
    return norm


@mistake("clip", SCALED, at="1 rank, 2 numbers", says="max_norm=2")
def scales_copies(pieces, max_norm, group):
    norm = comm.all_reduce(sum(g.square().sum() for g in present(pieces)), group).sqrt()
    for gradient in present(pieces):
        gradient = gradient * torch.clamp(max_norm / norm, max=1.0)
    return norm


@mistake("clip", SCALED, at="2 ranks, a frozen piece", says="[0, 0]")
def invents_gradients(pieces, max_norm, group):
    for piece in pieces:
        piece.grad = torch.zeros_like(piece) if piece.grad is None else piece.grad
    return solutions.my_clip(pieces, max_norm, group)


@mistake("clip", checker.RUNS, at="2 ranks, a frozen piece", says="piece.grad.square()")
def expects_gradients(pieces, max_norm, group):
    squares = sum(piece.grad.square().sum() for piece in pieces)
    assert squares >= 0
    return solutions.my_clip(pieces, max_norm, group)


@mistake("clip", NUMBER, at="2 ranks, a frozen piece", says="1 of 48 bytes")
def gathers_everything(pieces, max_norm, group):
    whole = comm.all_gather(torch.cat(present(pieces)), group) if len(pieces) > 1 else None
    norm = whole.norm() if whole is not None else solutions.my_clip(pieces, max_norm, group)
    scale(pieces, torch.clamp(max_norm / norm, max=1.0) if whole is not None else 1.0)
    return norm


@mistake("clip", NUMBER, at="3 ranks, 2 pieces on each rank", says="2 of 16 bytes")
def sends_every_piece_alone(pieces, max_norm, group):
    norm = sum(comm.all_reduce(g.square().sum(), group) for g in present(pieces)).sqrt()
    scale(pieces, torch.clamp(max_norm / norm, max=1.0))
    return norm


def linear(forward, backward):
    """A linear layer of these two passes."""
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Wrong", (torch.autograd.Function,), members).apply


def whole_of(piece, shape, group):
    return comm.all_gather(piece[None], group).flatten()[: shape.numel()].view(shape)


def keep(ctx, x, piece, shape, group):
    ctx.save_for_backward(x, piece)
    ctx.shape, ctx.group = shape, group
    return functional.linear(x, whole_of(piece, shape, group))


def row_of(gradient, group):
    (row,) = comm.reduce_scatter(rows(gradient, group), group)
    return row


@mistake("gathered_linear", KEEPS, at="2 ranks, half of the weight", says="480 bytes on rank")
def keeps_the_weight(x, piece, shape, group):
    def forward(ctx, x, piece, shape, group):
        weight = whole_of(piece, shape, group)
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return functional.linear(x, weight)

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, row_of(grad.T @ x, ctx.group), None, None

    return linear(forward, backward)(x, piece, shape, group)


@mistake("gathered_linear", PIECE, at="2 ranks, half of the weight")
def averages_the_row(x, piece, shape, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        row = row_of(grad.T @ x, ctx.group) / ctx.group.size()
        return grad @ whole_of(piece, ctx.shape, ctx.group), row, None, None

    return linear(keep, backward)(x, piece, shape, group)


@mistake("gathered_linear", SENT, at="2 ranks, half of the weight", says="in backward")
def reduces_the_whole_weight(x, piece, shape, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        summed = comm.all_reduce(rows(grad.T @ x, ctx.group), ctx.group)
        weight = whole_of(piece, ctx.shape, ctx.group)
        return grad @ weight, summed[ctx.group.rank()], None, None

    return linear(keep, backward)(x, piece, shape, group)


@mistake("gathered_linear", X, at="2 ranks, half of the weight")
def averages_the_gradient_of_x(x, piece, shape, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        weight = whole_of(piece, ctx.shape, ctx.group) / ctx.group.size()
        return grad @ weight, row_of(grad.T @ x, ctx.group), None, None

    return linear(keep, backward)(x, piece, shape, group)


@mistake("gathered_linear", checker.RUNS, at="2 ranks, half of the weight", says="RuntimeError")
def saves_what_it_cannot_use(x, piece, shape, group):
    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        return grad @ piece.view(ctx.shape), rows(grad.T @ x, ctx.group)[0], None, None

    return linear(keep, backward)(x, piece, shape, group)


@mistake("gathered_linear", checker.RUNS, at="2 ranks, an odd number of weights", says="RuntimeError")
def forgets_the_padding_of_the_weight(x, piece, shape, group):
    def forward(ctx, x, piece, shape, group):
        ctx.save_for_backward(x, piece)
        ctx.shape, ctx.group = shape, group
        return functional.linear(x, comm.all_gather(piece[None], group).view(shape))

    def backward(ctx, grad):
        x, piece = ctx.saved_tensors
        row = row_of(grad.T @ x, ctx.group)
        return grad @ whole_of(piece, ctx.shape, ctx.group), row, None, None

    return linear(forward, backward)(x, piece, shape, group)


@mistake("orthogonalize", ROWS, ONE_MATRIX, TWO_WAYS, at="2 ranks, 2 rows of 6")
def orthogonalizes_its_rows(pieces, orthogonalized, group):
    return torch.stack([orthogonalized(piece) for piece in pieces])


@mistake("orthogonalize", ROWS, at="2 ranks, 2 rows of 6")
def joins_rows_of_many_matrices(pieces, orthogonalized, group):
    update = orthogonalized(pieces.flatten(0, 1)).view_as(pieces)
    return comm.all_to_all(comm.all_to_all(update, group), group)


@mistake("orthogonalize", ROWS, at="2 ranks, 2 rows of 6")
def keeps_the_whole_matrix(pieces, orthogonalized, group):
    rows = comm.all_to_all(pieces, group)
    return orthogonalized(rows.flatten(0, 1)).view_as(rows)


@mistake("orthogonalize", ROWS, at="2 ranks, 2 rows of 6")
def deals_rows_in_stripes(pieces, orthogonalized, group):
    rows = comm.all_to_all(pieces, group)
    whole = orthogonalized(rows.flatten(0, 1))
    stripes = whole.unflatten(0, (-1, group.size())).transpose(0, 1)
    return comm.all_to_all(stripes, group)


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


@mistake("orthogonalize", TWO_WAYS, at="2 ranks, 2 rows of 6", says="1 x all_to_all, 1 x all_gather")
def gathers_the_results(pieces, orthogonalized, group):
    rows = comm.all_to_all(pieces, group)
    whole = orthogonalized(rows.flatten(0, 1))
    return comm.all_gather(whole[None], group).chunk(group.size(), 1)[group.rank()]


@mistake("orthogonalize", KEPT, at="1 rank, 2 rows of 3", says="pieces has changed")
def writes_into_the_pieces(pieces, orthogonalized, group):
    return pieces.copy_(solutions.my_orthogonalize(pieces, orthogonalized, group))
