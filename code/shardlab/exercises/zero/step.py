"""Exercise: a step of ZeRO's stage 1, from partial gradients to whole parameters, in two messages.

It is the end of `plain.zero.ZeRO2.step`, which sends one message per parameter instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.costs import collectives, units
from shardlab.ranks.observe import ledger

from .. import evidence, tensors
from ..checker import Case, Exercise, Finding, on_each_rank

RATE = 0.25  # of plain SGD, so that steps from whole numbers are exact


@dataclass(frozen=True)
class Given:
    """The shapes of the parameters, and which of them is frozen."""

    shapes: Sequence[tuple[int, ...]]
    frozen: int | None = None


@dataclass(frozen=True, kw_only=True)
class Stepped(evidence.Seen):
    """What a rank has after the step."""

    parameters: list[Tensor]
    steps: list[list[Tensor | None]]  # the gradients of the pieces, at each step of the optimizer
    left: list[int]  # numbers of parameters and pieces that still have a gradient


def parameters(case: Case) -> list[nn.Parameter]:
    """Make the parameters, the same on every rank."""
    shapes = enumerate(case.given.shapes)
    return [nn.Parameter(evidence.whole_numbers(50 + n, *shape)) for n, shape in shapes]


def partial(case: Case, number: int, rank: int) -> Tensor | None:
    """Make this rank's part of one gradient; None if the parameter is frozen."""
    if number == case.given.frozen:
        return None
    return evidence.whole_numbers(100 * rank + number, *case.given.shapes[number])


def gradient(case: Case, number: int, rank: int) -> Tensor | None:
    """Sum the parts of one gradient over the rank's group."""
    parts = [partial(case, number, each) for each in case.members(rank)]
    present = [part for part in parts if part is not None]
    return torch.stack(present).sum(dim=0) if present else None


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Stepped:
    """Let the function step, and record what the optimizer gets."""
    whole = parameters(case)
    pieces = [tensors.row(p, case, rank) for p in whole]
    for number, p in enumerate(whole):
        p.grad = partial(case, number, rank)
        p.requires_grad_(number != case.given.frozen)
    optimizer = torch.optim.SGD(pieces, lr=RATE)
    steps: list[list[Tensor | None]] = []

    def record(*_: Any) -> None:
        steps.append([None if p.grad is None else p.grad.detach().clone() for p in pieces])

    optimizer.register_step_pre_hook(record)
    with ledger.Ledger() as book:
        function(whole, pieces, optimizer, group)
    pairs = enumerate(zip(whole, pieces, strict=True))
    return Stepped(
        parameters=[p.detach().clone() for p in whole],
        steps=steps,
        left=[number for number, pair in pairs if any(x.grad is not None for x in pair)],
        events=book.events,
    )


@on_each_rank
def are_stepped(case: Case, rank: int, seen: Stepped) -> Finding | None:
    """Compare every whole parameter with one that stepped in one process."""
    for number, before in enumerate(parameters(case)):
        summed = gradient(case, number, rank)
        right = before.detach() if summed is None else before.detach() - RATE * summed
        got = seen.parameters[number]
        place = evidence.first_difference(right, got)
        if place is not None:
            added = evidence.show(summed, place)
            stepped = f"{evidence.show(before, place)}, summed gradient {added}"
            shown = f"{evidence.show_got(got, right, place)} on rank {rank}"
            return Finding(f"parameter {number} = {stepped}", evidence.show(right, place), shown)
    return None


@on_each_rank
def steps_its_pieces(case: Case, rank: int, seen: Stepped) -> Finding | None:
    """Ask for one step of the optimizer, with this rank's rows of the summed gradients."""
    if len(seen.steps) != 1:
        shown = f"{units.counted(len(seen.steps), 'step')} on rank {rank}"
        return Finding(case.title, "one step of the optimizer", shown)
    for number, got in enumerate(seen.steps[0]):
        summed = gradient(case, number, rank)
        right = None if summed is None else tensors.row(summed, case, rank)
        if right is None and got is None:
            continue
        place = 0 if right is None else evidence.first_difference(right, got)
        if place is not None:
            expected = f"piece {number}: gradient {evidence.show(right, place)} on rank {rank}"
            shown = "a gradient" if right is None else evidence.show_got(got, right, place)
            return Finding(_given(case, number, rank), expected, shown)
    return None


@on_each_rank
def frees_gradients(case: Case, rank: int, seen: Stepped) -> Finding | None:
    """Ask that no parameter and no piece keeps its gradient."""
    if not seen.left:
        return None
    expected = "p.grad = None for every parameter and piece after the step"
    return Finding(case.title, expected, f"a gradient at place {seen.left[0]} on rank {rank}")


def _given(case: Case, number: int, rank: int) -> str:
    parts = [f"{evidence.show(partial(case, number, r))} on rank {r}" for r in case.members(rank)]
    return f"parameter {number}: gradient {', '.join(parts)}"


def budget(case: Case) -> float:
    """Return the bytes of a reduce-scatter and an all-gather of all rows that are not frozen."""
    ranks = len(case.members(0))
    numbered = enumerate(parameters(case))
    trained = [p for number, p in numbered if number != case.given.frozen]
    padded = [tensors.row(p, case, 0).numel() * ranks for p in trained]
    return collectives.ring_all_reduce(evidence.NUMBER * sum(padded), ranks).sent


TWO = ((2,), (3, 2))
EXERCISE = Exercise(
    name="zero.step",
    compare="shardlab.plain.zero.ZeRO1.step",
    points=3,
    cases=[
        Case(world_size=1, title="one parameter", given=Given(((2,),))),
        Case(world_size=2, title="one parameter", given=Given(((2,),))),
        Case(world_size=2, title="two parameters", given=Given(TWO)),
        Case(world_size=2, title="three numbers on two ranks", given=Given(((3,),))),
        Case(world_size=2, title="a frozen parameter", given=Given((*TWO, (2,)), frozen=1)),
        Case(world_size=3, title="two parameters", given=Given(((4,), (3, 2)))),
        Case(world_size=4, title="three parameters", given=Given(((4, 3), (1,), (5,)))),
        Case(world_size=4, title="two parameters", given=Given(TWO), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has whole parameters after the step": are_stepped,
        "the optimizer steps this rank's pieces once, with summed gradients": steps_its_pieces,
        "no gradient is left": frees_gradients,
        "a rank sends as much as one all-reduce of the gradients": (evidence.sends_at_most(budget)),
        "a rank sends two messages": evidence.sends_messages(2),
    },
)
