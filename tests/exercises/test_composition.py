"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.sharding.layout import Layout, groups

from .grading import Chapter, Graded, Mistake
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


CHAPTER.changes({
    "turns the order around": Mistake("groups", {RANKS}, at="4 ranks, two axes, tp first", says="rank=0",
        old="in order", new="in reversed(order)"),
    "knows one order only": Mistake("groups", {RANKS}, at="4 ranks, two axes, tp last", says="'tp': [0, 2]",
        old="in order", new='in ("tp", "dp", "pp")'),
    "begins with itself": Mistake("groups", {RANKS}, at="2 ranks, one axis of two", says="[1, 0]",
        old="[first + i * stride for i in range(degrees[axis])]",
        new="sorted((first + i * stride for i in range(degrees[axis])), key=lambda other: other != rank)"),
})


@mistake("groups", SIZES, OWN, RANKS, at="2 ranks, one axis of two", says="1 in every group")
def takes_blocks_for_every_axis(rank, degrees, order):
    """As if strides did not multiply, and with the rank's own block for the first axis only."""
    first = rank // degrees["tp"] * degrees["tp"]
    found = {axis: list(range(degrees[axis])) for axis in order}
    found["tp"] = list(range(first, first + degrees["tp"]))
    found["dp"] = found["dp"][: max(1, degrees["dp"] - 1)]
    return found


CHAPTER.changes({
    "deals along tp too": Mistake("duties", {SAME}, at="8 ranks, three axes", says="at tp 1, dp 0, pp 0",
        old='[place["dp"]], ', new='[(place["dp"] + place["tp"]) % degrees["dp"]], '),
    "drops the rest": Mistake("duties", {ONCE}, at="24 ranks, unequal shares", says="all replicas together",
        old="deal(num_samples,", new='deal(num_samples // degrees["dp"] * degrees["dp"],'),
    "lets rank 0 write": Mistake("duties", {WRITTEN}, at="2 ranks, two tensor parallel ranks", says="0 ranks",
        old='zero or place["dp"] == 0', new="not any(place.values())"),
    "forgets zero": Mistake("duties", {WRITTEN}, at="2 ranks, two replicas with ZeRO", says="0 ranks",
        old="zero or place", new="place"),
})


@mistake("duties", SHARES, at="24 ranks, unequal shares", says="from 2 to 4 samples")
def gives_the_rest_to_the_last(place, degrees, num_samples, zero):
    share, last = num_samples // degrees["dp"], place["dp"] == degrees["dp"] - 1
    samples = range(place["dp"] * share, num_samples if last else (place["dp"] + 1) * share)
    return samples, solutions.my_duties(place, degrees, num_samples, zero)[1]


CHAPTER.changes({
    "counts copies": Mistake("gradient_norm", {NORM}, at="2 ranks, tp=2", says="on rank 0",
        old=" / holders[name]", new=""),
    "sums over replicas too": Mistake("gradient_norm", {NORM}, at="2 ranks, dp=2", says="on rank 0",
        old="mesh.model", new="mesh.world"),
    "adds norms": Mistake("gradient_norm", {NORM}, at="2 ranks, tp=2", says="on rank 0",
        old="sum(), mesh.model).sqrt()", new="sum().sqrt(), mesh.model)"),
    "forgets the other stages": Mistake("gradient_norm", {NORM, SENT}, at="2 ranks, pp=2", says="on rank 0",
        old="mesh.model", new="mesh.tp"),
})


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
