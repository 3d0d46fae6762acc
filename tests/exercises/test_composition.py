"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import torch

from shardlab import comm
from shardlab.exercises import checker
from shardlab.sharding.layout import Layout, groups

from .grading import Chapter, Graded, Mistake
from .solutions import composition as solutions

CHAPTER = Chapter("composition", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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
READ, OTHERS = "every byte of the box is read", "no other byte is read"
FEW = "bytes that follow one another are one range"
FITS, STAY = "the table fits the file", "rows that were right stay as they are"
REPAIRED, TRIED = "the wrong row is repaired", "no table is tried that does not fit"
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
    "forgets the length before the header": Mistake("byte_ranges", {READ, OTHERS}, at="1 rank, a whole vector",
        says="byte 144 is read", old="8 + header_length", new="header_length"),
    "begins with the first tensor": Mistake("byte_ranges", {READ, OTHERS}, at="1 rank, the second tensor of a file",
        says="byte 272 is read", old=" + begin + ", new=" + "),
    "knows numbers of four bytes only": Mistake("byte_ranges", {READ, OTHERS}, at="1 rank, two bytes a number",
        says="byte 140 is read", old="(end - begin) // prod(shape)", new="4"),
    "reads rank 0's rows": Mistake("byte_ranges", {READ, OTHERS}, at="1 rank, half a vector",
        says="byte 140 is read", old=" + offsets[0] * row", new=""),
    "reads rank 0's columns": Mistake("byte_ranges", {READ, OTHERS}, at="1 rank, columns of a matrix: rank 3 of 4",
        says="byte 152 is read", old="offsets[1] * width", new="0"),
    "reads from the first column to the last": Mistake("byte_ranges", {OTHERS},
        at="1 rank, columns of a matrix: rank 3 of 4", says="byte 160 is not read",
        old="[(start + i * row, start + i * row + sizes[1] * width) for i in range(sizes[0])]",
        new="[(start, start + (sizes[0] - 1) * row + sizes[1] * width)]"),
    "asks for each row": Mistake("byte_ranges", {FEW}, at="1 rank, a whole vector", says="6 ranges: [(128, 132)",
        old="[(start, start + sizes[0] * row)]",
        new="[(start + i * row, start + (i + 1) * row) for i in range(sizes[0])]"),
    "believes that shapes tell everything": Mistake("repair", {STAY, REPAIRED}, at="1 rank, up reads what gate reads",
        says="gate stays", old=" and agrees(tried)", new=""),
    "asks about every table": Mistake("repair", {TRIED}, at="1 rank, a name that the file does not have",
        says="the file has no h.0.key", old="fits(tried, shapes, stored) and ", new=""),
    "lets two rows take one tensor": Mistake("repair", {TRIED}, at="1 rank, up reads what gate reads",
        says="both take h.0.gate_proj", old="len({there for there, _ in table.values()}) < len(table)", new="False"),
})


@mistake("repair", FITS, REPAIRED, at="1 rank, a matrix that is not square, turned", says="does not fit h.0.c_proj")
def never_transposes(table, shapes, stored, agrees):
    """Looks for another name only."""
    unused = [there for there in stored if there not in {each for each, _ in table.values()}]
    for name, (_, transposed) in table.items():
        for there in unused:
            tried = {**table, name: (there, transposed)}
            if solutions.fits(tried, shapes, stored) and agrees(tried):
                return tried
    return table


@mistake("repair", FITS, STAY, at="1 rank, a name that the file does not have", says="it has 1 of 5 rows")
def returns_the_row_alone(table, shapes, stored, agrees):
    right = solutions.my_repair(table, shapes, stored, agrees)
    return {name: row for name, row in right.items() if row != table[name]}


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


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("repair")
def changes_rows_that_are_lists(table, shapes, stored, agrees):
    def lists(rows):
        return {name: [there, int(turned)] for name, (there, turned) in rows.items()}

    return lists(solutions.my_repair(table, shapes, stored, lambda tried: agrees(lists(tried))))
