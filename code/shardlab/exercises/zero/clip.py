"""Exercise: clip gradients by their global norm, where every rank has other pieces of them.

In `plain.zero` it would come first in `update`, before the optimizer's step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

MAX_NORM = 2.0
LOOSE = 1e-5  # relative: some divide by the norm plus 1e-6


@dataclass(frozen=True)
class Given:
    """The lengths of a rank's pieces, the largest number in them, and the frozen piece."""

    sizes: Sequence[int]
    largest: int
    frozen: int | None = None


@dataclass(frozen=True, kw_only=True)
class Clipped(evidence.Seen):
    """What a rank has after clipping; `result` is the norm that was returned."""

    gradients: list[Tensor | None]
    replaced: list[int]  # pieces whose gradient is another tensor than before


def gradients(case: Case, rank: int) -> list[Tensor | None]:
    """Draw the gradient of each piece, different on every rank; None for a frozen piece."""
    given: Given = case.given
    random = torch.Generator().manual_seed(rank)
    drawn = [torch.randint(given.largest + 1, (n,), generator=random) / 8 for n in given.sizes]
    return [None if n == given.frozen else x.double() for n, x in enumerate(drawn)]


def present(case: Case, rank: int) -> list[Tensor]:
    """Return the gradients that a rank has."""
    return [gradient for gradient in gradients(case, rank) if gradient is not None]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Clipped:
    """Let the function clip this rank's gradients."""
    pieces = [torch.zeros(size, dtype=torch.float64) for size in case.given.sizes]
    given = gradients(case, rank)
    for piece, gradient in zip(pieces, given, strict=True):
        piece.grad = gradient
    with ledger.Ledger() as book:
        norm = evidence.number(function(pieces, MAX_NORM, group))
    after = [None if piece.grad is None else piece.grad.clone() for piece in pieces]
    there = [n for n, gradient in enumerate(given) if gradient is not None]
    replaced = [n for n in there if pieces[n].grad is not given[n]]
    return Clipped(result=norm, gradients=after, replaced=replaced, events=book.events)


def whole_norm(case: Case, rank: int) -> float:
    """Compute the norm over all ranks of a rank's group."""
    everything = [gradient for each in case.members(rank) for gradient in present(case, each)]
    return float(torch.cat(everything).norm())


@on_each_rank
def returns_norm(case: Case, rank: int, seen: Clipped) -> Finding | None:
    """Compare the returned norm with that of all gradients."""
    right = whole_norm(case, rank)
    close = evidence.EXACT * max(right, 1)
    if isinstance(seen.result, float) and abs(seen.result - right) <= close:
        return None
    return Finding(_given(case, rank), f"{right:.6g}", f"{seen.result} on rank {rank}")


@on_each_rank
def scales(case: Case, rank: int, seen: Clipped) -> Finding | None:
    """Ask that every gradient is multiplied by the same factor."""
    norm = whole_norm(case, rank)
    factor = min(1.0, MAX_NORM / norm)
    for before, after in zip(gradients(case, rank), seen.gradients, strict=True):
        if before is None or after is None:
            if after is not before:
                expected = f"{evidence.show(before)} on rank {rank}"
                return Finding(_given(case, rank), expected, evidence.show(after))
            continue
        right = factor * before
        wrong = ~torch.isclose(after, right, rtol=LOOSE, atol=1e-12)
        if wrong.any():
            place = int(wrong.nonzero()[0])
            given = f"{evidence.show(before, place)}, max_norm={MAX_NORM:g}"
            expected = f"{evidence.show(right, place)} on rank {rank} (norm {norm:.4g})"
            return Finding(given, expected, evidence.show(after, place))
    return None


@Dependent
@on_each_rank
def scales_in_place(case: Case, rank: int, seen: Clipped) -> Finding | None:
    """Ask that the gradients are the tensors that they were: others may hold them, too."""
    if not seen.replaced:
        return None
    expected = f"the same tensor, scaled, on rank {rank}"
    return Finding(f"the gradient of piece {seen.replaced[0]}", expected, "another tensor")


@Dependent
@on_each_rank
def sends_one_number(case: Case, rank: int, seen: Clipped) -> Finding | None:
    """Ask for one message of one number."""
    payload = sum(event.nbytes for event in seen.events)
    alone = len(case.members(rank)) == 1
    if payload <= evidence.NUMBER and (len(seen.events) == 1 or (alone and not seen.events)):
        return None
    shown = f"{len(seen.events)} of {payload} bytes together on rank {rank}"
    return Finding(case.title, f"one message of {evidence.NUMBER} bytes", shown)


def _given(case: Case, rank: int) -> str:
    members = case.members(rank)
    shown = [(each, ", ".join(map(evidence.show, gradients(case, each)))) for each in members]
    return "; ".join(f"{numbers} on rank {each}" for each, numbers in shown)


EXERCISE = Exercise(
    name="zero.clip",
    compare="shardlab.ranks.zero.sharding.Zero.clip",
    points=2,
    cases=[
        Case(world_size=1, title="2 numbers", given=Given((2,), 32)),
        Case(world_size=2, title="2 numbers on each rank", given=Given((2,), 32)),
        Case(world_size=2, title="a norm small enough", given=Given((2,), 8)),
        Case(world_size=2, title="a frozen piece", given=Given((2, 3), 32, frozen=0)),
        Case(world_size=3, title="2 pieces on each rank", given=Given((2, 3), 32)),
        Case(world_size=4, title="2 numbers on each rank", given=Given((2,), 32), group_size=2),
    ],
    attempt=attempt,
    properties={
        "returns the norm of all gradients": returns_norm,
        "all gradients are scaled by the same factor, at most 1": scales,
        "the gradients are scaled in place": scales_in_place,
        "a rank sends one number": sends_one_number,
    },
)
