"""Exercise: the norm of the whole model's gradient on a mesh, with every number counted once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import trace
from shardlab.costs import collectives
from shardlab.layout import Layout
from shardlab.ranks import comm
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Exercise, Finding

MATRIX, NORM = "matrix", "norm"  # what each stage has: cut over tp, and whole on every rank of tp
TABLE, HEAD = "table", "head"  # tied embeddings, cut over tp: on the first stage, and their copy on the last
ROWS, NUMBER = 3, 8  # of a matrix on each rank of tp; bytes

STARTER = '''\
import torch
from shardlab.ranks import comm

def my_gradient_norm(gradients, holders, mesh):
    """The norm of the gradient of the whole model, on every rank: one number.

    gradients: name -> this rank's piece, averaged over mesh.dp already.
    holders: name -> how many ranks of mesh.model, those that hold one model
    between them, have these same numbers: 1 for a piece of a cut matrix.
    """
    squares = torch.stack([each.square().sum() for each in gradients.values()])
    return squares.sum().sqrt()  # of this rank alone: mend it
'''


@dataclass(frozen=True)
class Seen:
    """What a rank has afterwards."""

    result: Any
    same: bool  # the gradients are what they were
    events: list[trace.Event]


def whole(case: Case) -> dict[str, Tensor]:
    """The gradient of the plain model, by stage and parameter."""
    layout: Layout = case.given
    random = torch.Generator().manual_seed(layout.ranks)
    shapes = {f"{stage}.{MATRIX}": ROWS * layout.tp for stage in range(layout.pp)}
    shapes |= {f"{stage}.{NORM}": 2 for stage in range(layout.pp)} | {TABLE: 2 * layout.tp}
    return {name: torch.randint(1, 10, (rows,), generator=random).double() for name, rows in shapes.items()}


def held(case: Case, place: dict[str, int]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Pieces of a rank at this place, and how many ranks of its model have the same."""
    layout: Layout = case.given
    every, stage = whole(case), place["pp"]
    copies = 1 + (layout.pp > 1)
    found = {
        MATRIX: (every[f"{stage}.{MATRIX}"].chunk(layout.tp)[place["tp"]], 1),
        NORM: (every[f"{stage}.{NORM}"], layout.tp),
    }
    if stage == 0:
        found[TABLE] = every[TABLE].chunk(layout.tp)[place["tp"]], copies
    elif stage == layout.pp - 1:
        found[HEAD] = every[TABLE].chunk(layout.tp)[place["tp"]], copies
    return {name: piece.clone() for name, (piece, _) in found.items()}, {name: n for name, (_, n) in found.items()}


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function find the norm on this rank's pieces, and see what it sends."""
    mesh = Mesh(case.given, group)
    gradients, holders = held(case, mesh.place)
    with ledger.Ledger() as book:
        result = function(gradients, holders, mesh)
    before, _ = held(case, mesh.place)
    same = gradients.keys() == before.keys() and all(torch.equal(gradients[name], x) for name, x in before.items())
    try:
        return Seen(float(result), same, book.events)
    except (TypeError, ValueError):
        return Seen(f"{result!r:.60}, a {type(result).__name__}", same, book.events)


def is_the_norm(case: Case, seen: list[Any]) -> Finding | None:
    right = math.sqrt(sum(x.square().sum().item() for x in whole(case).values()))
    for rank, mine in enumerate(seen):
        if not (isinstance(mine.result, float) and math.isclose(mine.result, right, rel_tol=evidence.ROUNDING)):
            return Finding(case.title, f"{right:.6g} on every rank", f"{mine.result} on rank {rank}")
    return None


def leaves_gradients(case: Case, seen: list[Any]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if not mine.same:
            return Finding(case.title, "gradients as they were", f"others on rank {rank}")
    return None


def sends_one_number(case: Case, seen: list[Any]) -> Finding | None:
    """One number, summed over all ranks at most."""
    budget = collectives.ring_all_reduce(NUMBER, case.world_size).sent
    for rank, mine in enumerate(seen):
        sent = sum(map(trace.wire_bytes, mine.events))
        if sent > budget + 0.5:
            verbs = ", ".join(event.op for event in mine.events)
            expected = f"at most {budget:.0f} bytes sent by a rank, as for one number of all ranks"
            return Finding(case.title, expected, f"{sent:.0f} bytes sent by rank {rank} ({verbs})")
    return None


def _case(dp: int = 1, tp: int = 1, pp: int = 1) -> Case:
    degrees = {"dp": dp, "tp": tp, "pp": pp}
    title = ", ".join(f"{axis}={size}" for axis, size in degrees.items() if size > 1) or "nothing is cut"
    layout = Layout(dp=dp, tp=tp, pp=pp)
    return Case(world_size=layout.ranks, title=title, given=layout)


EXERCISE = Exercise(
    name="composition.gradient_norm",
    prompt="The norm of the whole model's gradient on a mesh: every number counted once, one number sent.",
    starter=STARTER,
    hint=(
        "Divide the squares of a piece by the number of its holders, add up this rank's pieces, and all-reduce that "
        "one number over the ranks that hold one model between them (mesh.model). Then take the root: not before."
    ),
    points=4,
    cases=[
        *(_case(), _case(dp=2), _case(tp=2), _case(pp=2)),
        *(_case(dp=4), _case(tp=2, pp=2), _case(dp=2, tp=2), _case(pp=4)),
    ],
    attempt=attempt,
    properties={
        "every rank has the norm of the uncut gradient": is_the_norm,
        "gradients stay what they were": leaves_gradients,
        "a rank sends no more than an all-reduce of one number": sends_one_number,
    },
)
