"""Exercise: name the rank that has a NaN, with one small message, and leave gradients alone."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm, trace
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

BUDGET = 16  # bytes that go into the all-reduce
NAN, INFINITY = math.nan, math.inf
LARGE = 1.7e308  # finite, but neither its square nor the sum of two
FROZEN = 1  # the parameter without a gradient


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> evidence.Seen:
    """Give every parameter but one a gradient, put NaN or infinity into some, and ask."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    for place, parameter in enumerate(model.parameters()):
        if place != FROZEN:
            sign = 1 - 2 * (place % 2)
            parameter.grad = torch.full_like(parameter, sign * LARGE)
    place, number = case.given.get(group.rank(), (None, 0.0))
    if place is not None:
        gradient = list(model.parameters())[place].grad
        assert gradient is not None
        gradient.view(-1)[-1] = number
    before = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    with ledger.Ledger() as book:
        result = function(model, group)
    pairs = enumerate(zip(model.parameters(), before, strict=True))
    changed = [f"gradient {place}" for place, (p, was) in pairs if not _same(p.grad, *was)]
    kept = None if result is None else evidence.whole(result)
    return evidence.Seen(result=kept, changed=changed, events=book.events)


def _same(now: Tensor | None, was: Tensor | None, copy: Tensor | None) -> bool:
    """Say whether a gradient is the same tensor with the same bits: NaN equals nothing."""
    if now is None or copy is None:
        return now is copy
    return now is was and torch.equal(now.view(torch.int64), copy.view(torch.int64))


@on_each_rank
def names_the_rank(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Compare the answer with the lowest rank that has NaN or infinity."""
    right = min(case.given) if case.given else None
    if seen.result == right:
        return None
    return Finding(_given(case), f"{right} on every rank", f"{seen.result} on rank {rank}")


@Dependent
@on_each_rank
def sends_little(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for one all-reduce of at most BUDGET bytes; a rank without peers needs none."""
    events = trace.communication(seen.events)
    small = [event.op == "all_reduce" and event.nbytes <= BUDGET for event in events]
    alone = len(case.members(rank)) == 1
    if small == [True] or (alone and not small):
        return None
    sent = ", ".join(f"{event.op} of {event.nbytes} bytes" for event in events) or "nothing sent"
    expected = f"one all_reduce of at most {BUDGET} bytes"
    return Finding(_given(case), expected, f"{sent} on rank {rank}")


def _given(case: Case) -> str:
    numbers = [
        f"{number} in gradient {place} of rank {rank}"
        for rank, (place, number) in case.given.items()
    ]
    return f"{', '.join(numbers) or 'all gradients finite'} (gradient {FROZEN} is None)"


EXERCISE = Exercise(
    name="failures.first_nan_rank",
    compare="shardlab.ranks.observe.diagnose.nonfinite",
    points=3,
    cases=[
        Case(1, "all finite", {}),
        Case(1, "a NaN", {0: (2, NAN)}),
        Case(2, "all finite", {}),
        Case(2, "a NaN on rank 1", {1: (0, NAN)}),
        Case(3, "an infinity on rank 2", {2: (3, -INFINITY)}),
        Case(4, "NaNs on two ranks", {3: (0, NAN), 1: (3, NAN)}),
        Case(4, "opposite infinities", {2: (2, INFINITY), 3: (2, -INFINITY)}),
        Case(4, "a NaN on the second of each", {1: (0, NAN)}, group_size=2),
    ],
    attempt=attempt,
    properties={
        "all ranks name the first rank that is ill": names_the_rank,
        "the gradients stay what they were": evidence.leaves_arguments,
        "one all-reduce of at most 16 bytes": sends_little,
    },
)
