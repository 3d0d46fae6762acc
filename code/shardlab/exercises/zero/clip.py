"""Exercise: clip gradients of which every rank has other pieces, by the norm of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import trace
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Exercise, Finding

MOST = 2.0  # the norm asked for
FEW = 8  # bytes: one number in float64

STARTER = '''\
import torch
from shardlab.ranks import comm

def my_clip(pieces, max_norm, group):
    """Scale the pieces in place: those of all ranks get a norm of at most max_norm.

    pieces: a list of tensors; every rank has other ones. Returns the norm before.
    """
    norm = torch.stack([piece.norm() for piece in pieces]).norm()  # this rank's alone
    for piece in pieces:
        piece *= torch.clamp(max_norm / norm, max=1.0)
    return norm
'''


@dataclass(frozen=True)
class Seen:
    """What a rank has afterwards."""

    norm: float | str
    pieces: list[Tensor]
    events: list[trace.Event]


def pieces(case: Case, rank: int) -> list[Tensor]:
    """Other whole numbers on every rank; case.given: the sizes of the pieces, and their largest number."""
    sizes, largest = case.given
    random = torch.Generator().manual_seed(rank)
    return [torch.randint(largest + 1, (size,), generator=random).double() / 8 for size in sizes]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function clip this rank's pieces."""
    mine = pieces(case, rank)
    with ledger.Ledger() as book:
        norm = function(mine, MOST, group)
    try:
        told: float | str = float(norm)
    except (TypeError, ValueError):
        told = f"{norm!r:.60}, a {type(norm).__name__}"
    return Seen(told, [piece.clone() for piece in mine], book.events)


def whole_norm(case: Case, rank: int) -> float:
    """Over all ranks of a rank's group."""
    return float(torch.cat([piece for each in case.members(rank) for piece in pieces(case, each)]).norm())


def returns_norm(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        right = whole_norm(case, rank)
        if not isinstance(mine.norm, float) or abs(mine.norm - right) > evidence.EXACT * max(right, 1):
            return Finding(_given(case, rank), f"{right:.6g}", f"{mine.norm} on rank {rank}")
    return None


def scales(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        factor = min(1.0, MOST / whole_norm(case, rank))
        for before, after in zip(pieces(case, rank), mine.pieces, strict=True):
            wrong = torch.isclose(after, factor * before, rtol=1e-5, atol=1e-12).logical_not()  # some add 1e-6
            if wrong.any():
                place = int(wrong.nonzero()[0])
                right = f"{evidence.show(factor * before, place)} on rank {rank} (norm {whole_norm(case, rank):.4g})"
                return Finding(f"{evidence.show(before, place)}, max_norm={MOST:g}", right, evidence.show(after, place))
    return None


def sends_one_number(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        said = sum(event.nbytes for event in mine.events)
        if said > FEW or len(mine.events) > 1:
            told = f"{len(mine.events)} of {said} bytes together on rank {rank}"
            return Finding(case.title, f"one message of {FEW} bytes", told)
    return None


def _given(case: Case, rank: int) -> str:
    return "; ".join(f"{list(map(evidence.show, pieces(case, each)))} on rank {each}" for each in case.members(rank))


EXERCISE = Exercise(
    name="zero.clip",
    prompt="Clip gradients that are cut over ranks by their global norm, with one message of one number.",
    starter=STARTER,
    hint="Norms do not add up, but their squares do: all-reduce the sum of squares, then take the root.",
    points=2,
    cases=[
        Case(world_size=1, title="2 numbers", given=((2,), 32)),
        Case(world_size=2, title="2 numbers on each rank", given=((2,), 32)),
        Case(world_size=2, title="a norm small enough", given=((2,), 8)),
        Case(world_size=3, title="2 pieces on each rank", given=((2, 3), 32)),
        Case(world_size=4, title="2 numbers on each rank", given=((2,), 32), group_size=2),
    ],
    attempt=attempt,
    properties={
        "returns the norm of all gradients": returns_norm,
        "all pieces are scaled by the same factor, at most 1": scales,
        "a rank sends one number": sends_one_number,
    },
)
