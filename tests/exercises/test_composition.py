"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.sharding.layout import Layout, groups

from .grading import Chapter, Graded
from .solutions import composition as solutions

CHAPTER = Chapter("composition", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


def test_the_solution_finds_the_groups_of_the_library():
    order = ("pp", "tp", "dp")
    for axis, every in groups(Layout(tp=2, dp=3, pp=2), order).items():
        for group in every:
            for rank in group:
                assert tuple(solutions.my_groups(rank, {"tp": 2, "dp": 3, "pp": 2}, order)[axis]) == group


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

SIZES, OWN = "every group has as many ranks as its axis", "a rank is in its own groups"
RANKS = "groups are the ranks that differ along one axis only"
SAME, ONCE = "ranks of one model read the same samples", "replicas together read each sample once"
SHARES, WRITTEN = "shares are equal to within one", "every piece is written by one rank"
NORM, LEFT = "every rank has the norm of the uncut gradient", "gradients stay what they were"
SENT = "a rank sends as much as an all-reduce of one number"


@mistake("groups", RANKS, at="4 ranks, two axes, tp first", says="rank=0")
def turns_the_order_around(rank, degrees, order):
    return solutions.my_groups(rank, degrees, tuple(reversed(order)))


@mistake("groups", SIZES, OWN, RANKS, at="2 ranks, one axis of two", says="1 in every group")
def takes_blocks_for_every_axis(rank, degrees, order):
    """As if strides did not multiply, and with the rank's own block for the first axis only."""
    first = rank // degrees["tp"] * degrees["tp"]
    found = {axis: list(range(degrees[axis])) for axis in order}
    found["tp"] = list(range(first, first + degrees["tp"]))
    found["dp"] = found["dp"][: max(1, degrees["dp"] - 1)]
    return found


@mistake("groups", RANKS, at="4 ranks, two axes, tp last", says="'tp': [0, 2]")
def knows_one_order_only(rank, degrees, order):
    return solutions.my_groups(rank, degrees, ("tp", "dp", "pp"))


@mistake("groups", RANKS, at="2 ranks, one axis of two", says="[1, 0]")
def begins_with_itself(rank, degrees, order):
    found = solutions.my_groups(rank, degrees, order)
    return {axis: sorted(each, key=lambda other: other != rank) for axis, each in found.items()}


@mistake("duties", SAME, at="8 ranks, three axes", says="at tp 1, dp 0, pp 0")
def deals_along_tp_too(place, degrees, num_samples, zero):
    """The ranks of one model take turns, as if they were replicas."""
    other = {**place, "dp": (place["dp"] + place["tp"]) % degrees["dp"]}
    return solutions.my_duties(other, degrees, num_samples, zero)[0], solutions.my_duties(place, degrees, 9, zero)[1]


@mistake("duties", ONCE, at="24 ranks, unequal shares", says="all replicas together")
def drops_the_rest(place, degrees, num_samples, zero):
    share = num_samples // degrees["dp"]
    samples = range(place["dp"] * share, (place["dp"] + 1) * share)
    return samples, solutions.my_duties(place, degrees, num_samples, zero)[1]


@mistake("duties", SHARES, at="24 ranks, unequal shares", says="from 2 to 4 samples")
def gives_the_rest_to_the_last(place, degrees, num_samples, zero):
    share, last = num_samples // degrees["dp"], place["dp"] == degrees["dp"] - 1
    samples = range(place["dp"] * share, num_samples if last else (place["dp"] + 1) * share)
    return samples, solutions.my_duties(place, degrees, num_samples, zero)[1]


@mistake("duties", WRITTEN, at="2 ranks, two tensor parallel ranks", says="0 ranks")
def lets_rank_0_write(place, degrees, num_samples, zero):
    return solutions.my_duties(place, degrees, num_samples, zero)[0], not any(place.values())


@mistake("duties", WRITTEN, at="2 ranks, two replicas with ZeRO", says="0 ranks")
def forgets_zero(place, degrees, num_samples, zero):
    return solutions.my_duties(place, degrees, num_samples, zero)[0], place["dp"] == 0


@mistake("gradient_norm", NORM, at="2 ranks, tp=2", says="on rank 0")
def counts_copies(gradients, holders, mesh):
    return solutions.my_gradient_norm(gradients, dict.fromkeys(holders, 1), mesh)


@mistake("gradient_norm", NORM, at="2 ranks, dp=2", says="on rank 0")
def sums_over_replicas_too(gradients, holders, mesh):
    squares = [gradient.square().sum() / holders[name] for name, gradient in gradients.items()]
    return comm.all_reduce(torch.stack(squares).sum(), mesh.world).sqrt()


@mistake("gradient_norm", NORM, at="2 ranks, tp=2", says="on rank 0")
def adds_norms(gradients, holders, mesh):
    squares = [gradient.square().sum() / holders[name] for name, gradient in gradients.items()]
    return comm.all_reduce(torch.stack(squares).sum().sqrt(), mesh.model)


@mistake("gradient_norm", NORM, SENT, at="2 ranks, pp=2", says="on rank 0")
def forgets_the_other_stages(gradients, holders, mesh):
    squares = [gradient.square().sum() / holders[name] for name, gradient in gradients.items()]
    return comm.all_reduce(torch.stack(squares).sum(), mesh.tp).sqrt()


@mistake("gradient_norm", SENT, at="2 ranks, tp=2", says="24 bytes sent")
def asks_for_every_parameter(gradients, holders, mesh):
    """One message for each; those of stages that have none are missed, so both ask for three."""
    squares = {name: gradient.square().sum() / holders[name] for name, gradient in gradients.items()}
    names = ("matrix", "norm", "table" if "table" in squares else "head")
    zero = torch.zeros((), dtype=torch.float64)
    return torch.stack([comm.all_reduce(squares.get(name, zero), mesh.model) for name in names]).sum().sqrt()


@mistake("gradient_norm", LEFT, at="2 ranks, tp=2", says="gradient of norm has changed on rank 0")
def divides_in_place(gradients, holders, mesh):
    for name, gradient in gradients.items():
        gradient /= holders[name] ** 0.5
    squares = [gradient.square().sum() for gradient in gradients.values()]
    return comm.all_reduce(torch.stack(squares).sum(), mesh.model).sqrt()


@mistake("gradient_norm", checker.RUNS, at="2 ranks, pp=2", says="Deadlock")
def lets_the_first_stage_ask(gradients, holders, mesh):
    if mesh.place["pp"] == 0:
        return solutions.my_gradient_norm(gradients, holders, mesh)
    return 0.0
