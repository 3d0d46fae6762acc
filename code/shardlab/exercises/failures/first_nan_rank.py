"""Exercise: which rank has the NaN, with one small message, and without touching a gradient."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import trace
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

from ..checker import Case, Exercise, Finding

STARTER = '''\
from shardlab.ranks import comm

def my_first_nan_rank(model, group):
    """The lowest rank with a NaN or an infinity in a gradient; None: no rank has.

    Called after backward and before the all-reduce. All ranks get the same answer.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    summed = [comm.all_reduce(gradient, group) for gradient in gradients]
    # too late and too much: now all ranks have it. Mend it
    return group.rank() if any(each.isnan().any() for each in summed) else None
'''

BUDGET = 16  # bytes that go into the all-reduce
NAN, INFINITY = math.nan, math.inf
Sick = Mapping[int, tuple[int, float]]  # rank in the group -> which parameter's gradient, and what stands in it
FROZEN = 1  # the parameter without a gradient


@dataclass(frozen=True)
class Seen:
    """What a rank's call returned, and left."""

    result: Any
    same: bool  # the gradients are the same tensors with the same bits
    events: list[trace.Event]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """A model with gradients, one of them None; the sick ranks get their number into one place."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    for place, parameter in enumerate(model.parameters()):
        if place != FROZEN:
            parameter.grad = torch.full_like(parameter, 1e200 * (1 - 2 * (place % 2)))  # large, and finite
    place, number = case.given.get(group.rank(), (None, 0.0))
    if place is not None:
        gradient = list(model.parameters())[place].grad
        assert gradient is not None
        gradient.view(-1)[-1] = number
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    with ledger.Ledger() as book:
        result = function(model, group)
    same = all(_same(p.grad, *was) for p, was in zip(model.parameters(), before, strict=True))
    if isinstance(result, Tensor) and result.numel() == 1:
        result = result.item()
    return Seen(result if isinstance(result, int | float | None) else f"{result!r:.60}", same, book.events)


def _same(now: Tensor | None, was: Tensor | None, copy: Tensor | None) -> bool:
    if now is None or copy is None:
        return now is copy
    return now is was and torch.equal(now.view(torch.int64), copy.view(torch.int64))


def names_the_rank(case: Case, seen: list[Seen]) -> Finding | None:
    right = min(case.given) if case.given else None
    for rank, mine in enumerate(seen):
        if mine.result is None or right is None:
            holds = mine.result is right
        else:
            holds = mine.result == right and not isinstance(mine.result, bool)
        if not holds:
            return Finding(_told(case), f"{right} on every rank", f"{mine.result!r} on rank {rank}")
    return None


def leaves_gradients(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if not mine.same:
            return Finding(_told(case), "the same gradients afterwards", f"other ones on rank {rank}")
    return None


def sends_little(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        events = trace.communication(mine.events)
        within = len(events) <= 1 and all(each.op == "all_reduce" and each.nbytes <= BUDGET for each in events)
        if not within:
            sent = ", ".join(f"{each.op} of {each.nbytes} bytes" for each in events)
            return Finding(_told(case), f"one all_reduce of at most {BUDGET} bytes", f"{sent} on rank {rank}")
    return None


def _told(case: Case) -> str:
    where = ", ".join(f"{number} in gradient {place} of rank {rank}" for rank, (place, number) in case.given.items())
    return f"{where or 'all gradients finite'} (gradient {FROZEN} is None)"


def _case(world_size: int, title: str, sick: Sick, group_size: int | None = None) -> Case:
    return Case(world_size=world_size, title=title, given=sick, group_size=group_size)


EXERCISE = Exercise(
    name="failures.first_nan_rank",
    prompt="Find the lowest rank with a NaN or an infinity in a gradient: one all-reduce of at most 16 bytes.",
    starter=STARTER,
    hint=(
        "Every rank says its own number if it is ill, and group.size() if it is not; then take the minimum over "
        "ranks. torch.isfinite knows NaN and infinity. Some gradients are None."
    ),
    points=3,
    cases=[
        _case(1, "all finite", {}),
        _case(1, "a NaN", {0: (2, NAN)}),
        _case(2, "all finite", {}),
        _case(2, "a NaN on rank 1", {1: (0, NAN)}),
        _case(3, "an infinity on rank 2", {2: (3, -INFINITY)}),
        _case(4, "NaNs on two ranks", {3: (0, NAN), 1: (3, NAN)}),
        _case(4, "opposite infinities", {2: (2, INFINITY), 3: (2, -INFINITY)}),
        _case(4, "a NaN on the second of each", {1: (0, NAN)}, group_size=2),
    ],
    attempt=attempt,
    properties={
        "all ranks name the first rank that is ill": names_the_rank,
        "the gradients stay what they were": leaves_gradients,
        "one all-reduce of at most 16 bytes": sends_little,
    },
)
