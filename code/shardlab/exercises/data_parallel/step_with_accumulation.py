"""Exercise: one optimizer step from several microbatches, with one synchronization.

The optimizer is plain SGD, and a hook records the gradients of its step: a step of Adam would hide
a wrong scale.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.costs import units
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

Batches = list[tuple[Tensor, Tensor]]


class Regression(nn.Module):
    """A network that returns its mean squared error, as the reference transformer its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the samples: [n, 2], [n, 1] -> []."""
        return nn.functional.mse_loss(self.net(inputs), targets)


@dataclass(frozen=True)
class Given:
    """What every rank starts with."""

    sizes: Sequence[int]  # samples in each microbatch
    hidden: int | None = None  # width of a hidden layer; None: the model is linear
    stale: bool = False  # whether the gradients of the previous step are still there

    def batches(self, rank: int) -> Batches:
        """Return inputs [n, 2] and targets [n, 1] of each microbatch, whole numbers."""
        random = torch.Generator().manual_seed(rank)
        shapes = [(size, 3) for size in self.sizes]
        numbers = [torch.randint(10, shape, generator=random).double() for shape in shapes]
        return [(each[:, :2].clone(), each[:, 2:].clone()) for each in numbers]

    @torch.no_grad()
    def model(self) -> Regression:
        """Build the same model on every rank."""
        random = torch.Generator().manual_seed(0)
        net: nn.Module = nn.Linear(2, 1)
        if self.hidden:
            first = nn.Linear(2, self.hidden)
            net = nn.Sequential(first, nn.Tanh(), nn.Linear(self.hidden, 1))
        for parameter in net.double().parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape, generator=random) / 2)
        return Regression(net)


@dataclass(frozen=True, kw_only=True)
class AccumulatedSteps(evidence.Seen):
    """What a rank did in its step."""

    steps: list[evidence.Named]  # the gradients at each step of the optimizer
    held: int  # the most samples whose activations waited for backward at the same time


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> AccumulatedSteps:
    """Let the function take a step, and watch the optimizer, the activations and the messages."""
    model = case.given.model()
    batches = case.given.batches(rank)
    given = list(batches)
    steps: list[evidence.Named] = []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if case.given.stale else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Behind the step, because a closure computes the gradients within it.
    optimizer.register_step_post_hook(lambda *_: steps.append(evidence.gradients(model)))
    held = watch_activations(model.net)
    with ledger.Ledger() as book:
        function(model, batches, optimizer, group)
    changed = evidence.changed(_named(case.given.batches(rank)), _named(given))
    changed += ["list of microbatches"] * ([*map(id, given)] != [*map(id, batches)])
    return AccumulatedSteps(steps=steps, held=max(held), changed=changed, events=book.events)


def _named(batches: Batches) -> dict[str, Tensor]:
    named = {}
    for number, (inputs, targets) in enumerate(batches):
        named[f"inputs of microbatch {number}"] = inputs
        named[f"targets of microbatch {number}"] = targets
    return named


def watch_activations(net: nn.Module) -> list[int]:
    """Return a list that gets, after each forward, how many samples wait for their backward."""
    held = [0]
    now = [0]

    def forward(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        if not output.requires_grad:
            return
        now[0] += len(output)
        held.append(now[0])
        output.register_hook(lambda _: now.__setitem__(0, now[0] - len(output)))

    net.register_forward_hook(forward)
    return held


@on_each_rank
def steps_once(case: Case, rank: int, seen: AccumulatedSteps) -> Finding | None:
    """Ask for one step of the optimizer."""
    if len(seen.steps) == 1:
        return None
    shown = f"{units.counted(len(seen.steps), 'time')} on rank {rank}"
    return Finding(_given(case), "optimizer.step() once", shown)


@on_each_rank
def has_global_gradient(case: Case, rank: int, seen: AccumulatedSteps) -> Finding | None:
    """Compare the first step's gradients with the gradients that one process computes."""
    for name, right in global_gradient(case, rank).items():
        got = seen.steps[0].get(name) if seen.steps else None
        place = evidence.first_difference(right, got)
        if place is not None:
            expected = f"{name}.grad = {evidence.show(right, place)}"
            shown = f"{name}.grad = {evidence.show_got(got, right, place)} on rank {rank}"
            return Finding(_given(case), expected, shown)
    return None


def global_gradient(case: Case, rank: int) -> dict[str, Tensor]:
    """Compute the gradient of all samples of this rank's group, in one backward."""
    model = case.given.model()
    samples = [batch for each in case.members(rank) for batch in case.given.batches(each)]
    inputs, targets = (torch.cat(parts) for parts in zip(*samples, strict=True))
    model(inputs, targets).backward()
    found = evidence.gradients(model)
    return {name: gradient for name, gradient in found.items() if gradient is not None}


@Dependent
@on_each_rank
def holds_one_microbatch(case: Case, rank: int, seen: AccumulatedSteps) -> Finding | None:
    """Ask that a microbatch's backward runs before the next one's forward."""
    budget = max(case.given.sizes)
    if seen.held <= budget:
        return None
    expected = f"activations of at most {units.counted(budget, 'sample')} at a time"
    got = f"those of {units.counted(seen.held, 'sample')} on rank {rank}"
    return Finding(_given(case), expected, got)


def gradient_bytes(case: Case) -> int:
    """Return the bytes of one model's gradients."""
    return evidence.nbytes(global_gradient(case, 0))


def _given(case: Case) -> str:
    sizes = ", ".join(map(str, case.given.sizes))
    stale = ", and gradients of the previous step" if case.given.stale else ""
    return f"microbatches of {sizes} samples on every rank{stale}"


EXERCISE = Exercise(
    name="data_parallel.step_with_accumulation",
    compare="shardlab.ranks.data_parallel.DataParallel.no_sync",
    points=4,
    cases=[
        Case(world_size=1, title="2 microbatches of 1 sample", given=Given([1, 1])),
        Case(world_size=2, title="1 microbatch", given=Given([2])),
        Case(world_size=2, title="2 microbatches", given=Given([2, 2])),
        Case(world_size=2, title="gradients of the previous step", given=Given([2, 2], stale=True)),
        Case(world_size=2, title="microbatches of unequal size", given=Given([3, 1])),
        Case(
            world_size=3, title="3 microbatches, a hidden layer", given=Given([2, 2, 2], hidden=3)
        ),
        Case(world_size=4, title="4 microbatches", given=Given([1, 1, 1, 1])),
        Case(world_size=4, title="2 microbatches", given=Given([1, 1]), group_size=2),
    ],
    attempt=attempt,
    properties={
        "the optimizer steps once": steps_once,
        "with the mean gradient over all samples of all ranks": has_global_gradient,
        "activations of one microbatch at a time": holds_one_microbatch,
        "batches stay what they were": evidence.leaves_arguments,
        "a rank sends as much as one all-reduce of the gradients": (
            evidence.sends_one_all_reduce(gradient_bytes)
        ),
    },
)
