"""Exercise: make N matrices whole, one on each rank, for an optimizer that needs them so.

It is the turn of N matrices in `plain.muon.AllToAllMuon.step`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm
from shardlab.costs import collectives
from shardlab.plain import muon

from .. import evidence, tensors
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank


@dataclass(frozen=True, kw_only=True)
class Orthogonalized(tensors.Returned):
    """What a rank has afterwards, and what it has orthogonalised."""

    shapes: list[list[int]]


def matrices(case: Case) -> Tensor:
    """Make the matrices of a group, one for each rank: [N, rows, columns]."""
    share, columns = case.given
    ranks = len(case.members(0))
    return evidence.whole_numbers(1, ranks, share * ranks, columns)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Take a rank's rows of all matrices: [N, rows/N, columns]."""
    return {"pieces": tensors.piece(matrices(case), case, rank, 1)}


def reference(case: Case, rank: int) -> evidence.Named:
    """Take a rank's rows of matrices that one process has orthogonalised."""
    whole = torch.stack([muon.orthogonalized(x) for x in matrices(case)])
    return {"output": tensors.piece(whole, case, rank, 1)}


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> Orthogonalized:
    """Call the function with this rank's rows, and count what it orthogonalises."""
    shapes = []

    def orthogonalized(x: Tensor) -> Tensor:
        shapes.append(list(x.shape))
        return muon.orthogonalized(x)

    def call(pieces: Tensor, group: comm.Group) -> Any:
        return function(pieces, orthogonalized, group)

    seen = TENSORS.attempt(call, group, case, rank)
    return Orthogonalized(**vars(seen), shapes=shapes)


@Dependent
@on_each_rank
def works_once(case: Case, rank: int, seen: Orthogonalized) -> Finding | None:
    """Ask for one whole matrix on each rank."""
    whole = list(matrices(case)[0].shape)
    if seen.shapes == [whole]:
        return None
    got = f"{seen.shapes} on rank {rank}"
    advice = "the ranks can work at the same time, each on another matrix"
    return Finding(_given(case), f"one matrix, {whole}", got, advice)


def two_exchanges(case: Case) -> float:
    """Return the bytes that a rank sends of its pieces, and of as many rows on their way back."""
    ranks = len(case.members(0))
    return 2 * collectives.all_to_all(matrices(case)[0].nbytes, ranks).sent


def _given(case: Case) -> str:
    share, columns = case.given
    ranks = len(case.members(0))
    shape = f"[{share * ranks}, {columns}]"
    return f"{ranks} matrices {shape}, {share} rows of each on each of {ranks} ranks"


def _case(ranks: int, share: int, columns: int, group_size: int | None = None) -> Case:
    title = f"{share} rows of {columns}"
    return Case(world_size=ranks, title=title, given=(share, columns), group_size=group_size)


TENSORS = tensors.Comparison(inputs=inputs, reference=reference, given=_given)
EXERCISE = Exercise(
    name="zero.orthogonalize",
    compare="shardlab.plain.muon.AllToAllMuon.step",
    points=3,
    cases=[
        _case(1, 2, 3),
        _case(2, 2, 6),
        _case(2, 3, 2),
        _case(3, 2, 4),
        _case(4, 1, 5),
        _case(4, 2, 3, group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has its rows of all matrices": TENSORS.has("output"),
        "the pieces stay what they were": evidence.leaves_arguments,
        "each rank orthogonalises one whole matrix": works_once,
        "a rank sends two all-to-alls at most": evidence.sends_at_most(two_exchanges),
    },
)
