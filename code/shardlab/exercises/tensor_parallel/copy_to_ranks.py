"""Exercise: the entrance of a cut region, whose backward sums; beside a residual, which must not notice."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from shardlab.ranks import comm

from .. import evidence
from ..checker import Case, Exercise
from ..shared import passes

STARTER = '''\
import torch
from shardlab.ranks import comm

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        return grad, None  # this rank's part alone: mend it

def my_copy_to_ranks(x, group):
    """The same x on every rank; in backward, the sum of the ranks' gradients."""
    return Copy.apply(x, group)
'''


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> passes.Seen:
    """x is alike on all ranks, what comes back is not; or x goes round the function, too, and the same comes back."""

    def call(x: Tensor) -> Any:
        if not case.given:
            return function(x, group)
        h = x * 1.0
        branch = function(h, group)
        return h + branch if isinstance(branch, Tensor) else branch

    return passes.both(call, {"x": _x()}, _incoming(case, rank))


def reference(case: Case, rank: int) -> evidence.Named:
    """The sum over the rank's group; with a residual, its own gradient once more."""
    sums = [_incoming(case, each) for each in case.members(rank)]
    total = sum(sums[1:], sums[0])
    if case.given:
        return {"output": 2 * _x(), "x.grad": total + _incoming(case, rank)}
    return {"output": _x(), "x.grad": total}


def _x() -> Tensor:
    return passes.numbers(0, 3)


def _incoming(case: Case, rank: int) -> Tensor:
    """Beside a residual all ranks go on alike."""
    return passes.numbers(1 if case.given else 1 + rank, 3)


def _told(case: Case) -> str:
    beside = "x + my_copy_to_ranks(x), " if case.given else ""
    incoming = ", ".join(evidence.show(_incoming(case, rank)) for rank in range(case.world_size))
    return f"{beside}gradients {incoming} come in"


EXERCISE = Exercise(
    name="tensor_parallel.copy_to_ranks",
    prompt="Pass x on unchanged, and in backward give the sum of the ranks' gradients.",
    starter=STARTER,
    hint=(
        "Each rank uses its copy for something else and gets only that part of the gradient: comm.all_reduce(grad, "
        "group) makes a new tensor with the sum. Autograd may have lent `grad` to somebody else, too."
    ),
    points=2,
    cases=[
        Case(world_size=1, title="one vector", given=False),
        Case(world_size=2, title="one vector", given=False),
        Case(world_size=2, title="beside a residual", given=True),
        Case(world_size=3, title="one vector", given=False),
        Case(world_size=4, title="beside a residual", given=True),
        Case(world_size=4, title="one vector", given=False, group_size=2),
    ],
    attempt=attempt,
    properties={
        "forward changes nothing": passes.has(("output",), reference, _told),
        "the gradient is the sum over the ranks of the group": passes.has(("x.grad",), reference, _told),
        "inputs and incoming gradients stay what they were": passes.leave_inputs,
        "forward sends nothing, backward one all-reduce": passes.sends(lambda case: 0, lambda case: _x().nbytes),
    },
)
