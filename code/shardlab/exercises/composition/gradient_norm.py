"""Exercise: the norm of the whole model's gradient on a mesh, with every number counted once.

It is `zero.clip` with more axes: tp and pp cut the model, and hold some of it in copies.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shardlab import comm
from shardlab.costs import collectives
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout

from .. import evidence
from ..checker import Case, Exercise, Finding, on_each_rank
from ..shared import formulas

MATRIX, NORM = "matrix", "norm"  # on each stage: cut over tp, and whole on every rank of tp
TABLE, HEAD = "table", "head"  # tied, cut over tp: on the first stage, and a copy on the last
ROWS = 3  # of a matrix on each rank of tp


def whole(case: Case) -> dict[str, Tensor]:
    """Draw the gradient of the uncut model, by stage and parameter."""
    layout: Layout = case.given
    random = torch.Generator().manual_seed(layout.ranks)
    shapes = {f"{stage}.{MATRIX}": ROWS * layout.tp for stage in range(layout.pp)}
    shapes |= {f"{stage}.{NORM}": 2 for stage in range(layout.pp)} | {TABLE: 2 * layout.tp}
    return {
        name: torch.randint(1, 10, (rows,), generator=random).double()
        for name, rows in shapes.items()
    }


def held(case: Case, place: dict[str, int]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the pieces of a rank at this place, and how many ranks of its model have the same."""
    layout: Layout = case.given
    every = whole(case)
    stage = place["pp"]
    matrix = every[f"{stage}.{MATRIX}"].chunk(layout.tp)[place["tp"]]
    pieces = {MATRIX: matrix.clone(), NORM: every[f"{stage}.{NORM}"].clone()}
    holders = {MATRIX: 1, NORM: layout.tp}
    if stage in (0, layout.pp - 1):
        name = HEAD if stage else TABLE
        pieces[name] = every[TABLE].chunk(layout.tp)[place["tp"]].clone()
        holders[name] = 2 if layout.pp > 1 else 1
    return pieces, holders


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> evidence.Seen:
    """Let the function compute the norm from this rank's pieces, and record what it sends."""
    mesh = Mesh(case.given, group)
    gradients, holders = held(case, mesh.place)
    with ledger.Ledger() as book:
        result = evidence.number(function(gradients, holders, mesh))
    before, _ = held(case, mesh.place)
    changed = [f"gradient of {name}" for name in evidence.changed(before, gradients)]
    return evidence.Seen(result=result, changed=changed, events=book.events)


@on_each_rank
def is_the_norm(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Compare the result with the norm of the uncut gradient."""
    right = math.sqrt(sum(x.square().sum().item() for x in whole(case).values()))
    got = seen.result
    if isinstance(got, float) and math.isclose(got, right, rel_tol=formulas.ROUNDING):
        return None
    return Finding(case.title, f"{right:.6g} on every rank", f"{got} on rank {rank}")


def budget(case: Case) -> float:
    """Return the bytes that an all-reduce of one number over all ranks sends."""
    return collectives.ring_all_reduce(evidence.NUMBER, case.world_size).sent


def needed(case: Case) -> float:
    """Return the bytes if only the ranks that hold one model together take part."""
    return collectives.ring_all_reduce(evidence.NUMBER, case.given.tp * case.given.pp).sent


def _case(dp: int = 1, tp: int = 1, pp: int = 1) -> Case:
    degrees = {"dp": dp, "tp": tp, "pp": pp}
    titles = [f"{axis}={size}" for axis, size in degrees.items() if size > 1]
    title = ", ".join(titles) or "nothing is cut"
    layout = Layout(dp=dp, tp=tp, pp=pp)
    return Case(world_size=layout.ranks, title=title, given=layout)


EXERCISE = Exercise(
    name="composition.gradient_norm",
    compare="shardlab.ranks.tensor_parallel.gradients.gradient_norm",
    points=4,
    cases=[
        *(_case(), _case(dp=2), _case(tp=2), _case(pp=2)),
        *(_case(dp=4), _case(tp=2, pp=2), _case(dp=2, tp=2), _case(pp=4)),
    ],
    attempt=attempt,
    properties={
        "every rank has the norm of the uncut gradient": is_the_norm,
        "gradients stay what they were": evidence.leaves_arguments,
        "a rank sends as much as an all-reduce of one number": (
            evidence.sends_at_most(budget, needed=needed)
        ),
    },
)
