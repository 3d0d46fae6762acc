"""Exercise: one optimizer step from several microbatches, with one synchronisation.

The optimizer is plain SGD, watched: its step tells which gradient it got. A step of Adam would hide a wrong scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from shardlab import trace
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Exercise, Finding

STARTER = '''\
def my_step_with_accumulation(model, batches, loss_fn, optimizer, group):
    """One step with the mean gradient over all samples of all ranks.

    batches: microbatches (x, y); every rank has the same number of samples.
    loss_fn(model(x), y) is the mean over one microbatch.
    """
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()  # each rank alone, too often: mend it
'''


@dataclass(frozen=True)
class Given:
    """What every rank starts with."""

    sizes: Sequence[int]  # samples in each microbatch
    hidden: int | None = None  # the model is a line, or has a hidden layer
    stale: bool = False  # gradients of the step before are still there

    def batches(self, rank: int) -> list[tuple[Tensor, Tensor]]:
        """Inputs [n, 2] and targets [n, 1] of each microbatch, whole numbers."""
        random = torch.Generator().manual_seed(rank)
        numbers = [torch.randint(10, (size, 3), generator=random).double() for size in self.sizes]
        return [(each[:, :2], each[:, 2:]) for each in numbers]

    @torch.no_grad()
    def model(self) -> nn.Module:
        """Alike on every rank."""
        h, random = self.hidden, torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(2, h), nn.Tanh(), nn.Linear(h, 1)) if h else nn.Linear(2, 1)
        for parameter in model.double().parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=random) / 2)
        return model


@dataclass(frozen=True)
class Seen:
    """What a rank did."""

    steps: list[evidence.Named]  # the gradients with which the optimizer stepped
    held: int  # samples, at most, whose activations waited for backward at the same time
    batches_unchanged: bool
    events: list[trace.Event]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function make one step, and watch the optimizer, the activations and the wire."""
    model, batches, steps = case.given.model(), case.given.batches(rank), []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if case.given.stale else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: steps.append(evidence.gradients(model)))
    held = watch_activations(model)
    with ledger.Ledger() as book:
        function(model, batches, nn.functional.mse_loss, optimizer, group)
    return Seen(steps, max(held), _same(batches, case.given.batches(rank)), book.events)


def watch_activations(model: nn.Module) -> list[int]:
    """Samples that wait for their backward, noted after each forward, from now on."""
    held, now = [0], [0]

    def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if not output.requires_grad:
            return
        now[0] += len(output)
        held.append(now[0])
        output.register_hook(lambda _: now.__setitem__(0, now[0] - len(output)))

    model.register_forward_hook(forward)
    return held


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = list(zip_longest(tree_leaves(ours), tree_leaves(theirs)))
    return all(isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b) for a, b in pairs)


def steps_once(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if len(mine.steps) != 1:
            return Finding(_given(case), "optimizer.step() once", f"{len(mine.steps)} times on rank {rank}")
    return None


def has_global_gradient(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        for name, expected in global_gradient(case, rank).items():
            got = mine.steps[0].get(name) if mine.steps else None
            place = evidence.first_difference(expected, got)
            if place is not None:
                right, wrong = evidence.show(expected, place), evidence.show(got, place)
                return Finding(_given(case), f"{name}.grad = {right}", f"{name}.grad = {wrong} on rank {rank}")
    return None


def global_gradient(case: Case, rank: int) -> dict[str, Tensor]:
    """That of one backward through all samples of this rank's group, on one process."""
    model = case.given.model()
    samples = [batch for each in case.members(rank) for batch in case.given.batches(each)]
    x, y = (torch.cat(parts) for parts in zip(*samples, strict=True))
    nn.functional.mse_loss(model(x), y).backward()
    return {name: gradient for name, gradient in evidence.gradients(model).items() if gradient is not None}


def holds_one_microbatch(case: Case, seen: list[Seen]) -> Finding | None:
    budget = max(case.given.sizes)
    for rank, mine in enumerate(seen):
        if mine.held > budget:
            return Finding(_given(case), f"activations of {budget} at a time", f"of {mine.held} on rank {rank}")
    return None


def leaves_batches(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if not mine.batches_unchanged:
            return Finding(_given(case), "the same batches afterwards", f"other ones on rank {rank}")
    return None


def gradient_bytes(case: Case) -> int:
    return evidence.nbytes(global_gradient(case, 0))


def _given(case: Case) -> str:
    sizes = ", ".join(map(str, case.given.sizes))
    stale = " and gradients of the step before" if case.given.stale else ""
    return f"microbatches of {sizes} samples on every rank{stale}"


EXERCISE = Exercise(
    name="data_parallel.step_with_accumulation",
    prompt="Make one optimizer step from several microbatches on every rank, and synchronise only once.",
    starter=STARTER,
    hint=(
        "Backward adds to grad. Weight each loss by its share of this rank's samples, so that the sum over "
        "microbatches is their mean; average over ranks after the last one."
    ),
    points=4,
    cases=[
        Case(world_size=1, title="2 microbatches of 1 sample", given=Given([1, 1])),
        Case(world_size=2, title="1 microbatch", given=Given([2])),
        Case(world_size=2, title="2 microbatches", given=Given([2, 2])),
        Case(world_size=2, title="gradients left from the step before", given=Given([2, 2], stale=True)),
        Case(world_size=2, title="microbatches of unequal size", given=Given([3, 1])),
        Case(world_size=3, title="3 microbatches, a hidden layer", given=Given([2, 2, 2], hidden=3)),
        Case(world_size=4, title="4 microbatches", given=Given([1, 1, 1, 1])),
        Case(world_size=4, title="2 microbatches", given=Given([1, 1]), group_size=2),
    ],
    attempt=attempt,
    properties={
        "the optimizer steps once": steps_once,
        "with the mean gradient over all samples of all ranks": has_global_gradient,
        "activations of one microbatch at a time": holds_one_microbatch,
        "batches stay what they were": leaves_batches,
        "a rank sends no more than one all-reduce of the gradients": evidence.sends_one_all_reduce(gradient_bytes),
    },
)
