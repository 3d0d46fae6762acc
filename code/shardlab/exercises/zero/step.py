"""Exercise: a step of which every rank does its share: gradients cut, pieces updated, parameters gathered."""

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

STARTER = '''\
from shardlab.ranks import comm

def my_step(parameters, gradients, update, group):
    """The parameters after one step; every rank updates its piece only.

    parameters: flat, alike on every rank; gradients: this rank's own, as long.
    Their length is a multiple of the number of ranks.
    update(piece, gradient) returns the new piece, and keeps Adam's moments of it.
    """
    gradients = comm.all_reduce(gradients, group) / group.size()
    return update(parameters, gradients)  # every rank updates everything: mend it
'''


@dataclass(frozen=True)
class Seen:
    """What a rank has afterwards."""

    result: Tensor | None
    updated: list[tuple[Tensor, Tensor]]  # what `update` was called with
    same: bool  # the inputs are what they were
    events: list[trace.Event]


def numbers(case: Case, seed: int) -> Tensor:
    """Whole numbers; case.given: how many for each rank of the group."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, 10, (case.given * len(case.members(0)),), generator=random).double()


def parameters(case: Case) -> Tensor:
    """Alike on every rank."""
    return numbers(case, 100)


def new(piece: Tensor, gradient: Tensor) -> Tensor:
    """What an update makes."""
    return piece - gradient / 4


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function step, and note what it updates and sends."""
    weights, gradients, updated = parameters(case), numbers(case, rank), []

    def update(piece: Tensor, gradient: Tensor) -> Tensor:
        updated.append((piece.detach().clone(), gradient.detach().clone()))
        return new(piece, gradient)

    with ledger.Ledger() as book:
        result = function(weights, gradients, update, group)
    same = torch.equal(weights, parameters(case)) and torch.equal(gradients, numbers(case, rank))
    return Seen(result.detach().clone() if isinstance(result, Tensor) else None, updated, same, book.events)


def mean(case: Case, rank: int) -> Tensor:
    """The average gradient over the ranks of a rank's group."""
    return torch.stack([numbers(case, each) for each in case.members(rank)]).mean(dim=0)


def are_stepped(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        right = new(parameters(case), mean(case, rank))
        place = evidence.first_difference(right, mine.result)
        if place is not None:
            before, gradient = (evidence.show(x, place) for x in (parameters(case), mean(case, rank)))
            given = f"parameters {before}, mean gradient {gradient}"
            return Finding(given, evidence.show(right, place), f"{evidence.show(mine.result, place)} on rank {rank}")
    return None


def updates_its_piece(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        place = rank - case.members(rank).start
        span = slice(place * case.given, (place + 1) * case.given)
        right = parameters(case)[span], mean(case, rank)[span]
        got = [tuple(map(evidence.show, each)) for each in mine.updated]
        fits = len(mine.updated) == 1 and all(
            evidence.first_difference(expected, each) is None
            for expected, each in zip(right, mine.updated[0], strict=True)
        )
        if not fits:
            expected = f"one update, of {evidence.show(right[0])} with {evidence.show(right[1])} on rank {rank}"
            told = "; ".join(f"{piece} with {gradient}" for piece, gradient in got) or "no update"
            return Finding(f"{case.given} numbers for each rank", expected, told)
    return None


def leaves_inputs(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if not mine.same:
            return Finding(case.title, "parameters and gradients as they were", f"others on rank {rank}")
    return None


def payload(case: Case) -> int:
    return parameters(case).nbytes


EXERCISE = Exercise(
    name="zero.step",
    prompt="Step with the mean gradient, so that each rank updates its piece alone, for the bytes of one all-reduce.",
    starter=STARTER,
    hint=(
        "An all-reduce is a reduce-scatter and an all-gather. Do the update between them: comm.reduce_scatter gives "
        "this rank's piece of the sum, and its piece of the parameters is parameters.chunk(n)[rank]."
    ),
    points=3,
    cases=[
        Case(world_size=1, title="2 numbers", given=2),
        Case(world_size=2, title="1 number for each", given=1),
        Case(world_size=2, title="3 numbers for each", given=3),
        Case(world_size=3, title="2 numbers for each", given=2),
        Case(world_size=4, title="5 numbers for each", given=5),
        Case(world_size=4, title="2 numbers for each", given=2, group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has all parameters after the step": are_stepped,
        "a rank updates its own piece, once": updates_its_piece,
        "parameters and gradients stay what they were": leaves_inputs,
        "a rank sends no more than one all-reduce of the gradients": evidence.sends_one_all_reduce(payload),
    },
)
