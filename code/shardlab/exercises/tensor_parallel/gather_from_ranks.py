"""Exercise: a third gate, which joins the outputs of a layer that is cut by columns.

`plain.tensor_parallel` never joins them. Megatron-LM does, if asked to (`gather_output`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from shardlab import comm
from shardlab.costs import collectives

from .. import evidence
from ..checker import Case, Exercise
from ..shared import passes

PER_RANK = 2  # f/N
STARTER = '''\
import torch
from shardlab import comm

class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return comm.all_gather(x, group)  # joins the first dim, not the last: fix it
    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(ctx.group.size(), -1)[0], None  # rank 0's part: fix it

def my_gather_from_ranks(x, group):
    """Join the ranks' outputs, [..., f/N] -> [..., f]; all ranks go on alike."""
    return AllGather.apply(x, group)
'''


def whole(case: Case) -> Tensor:
    """Make the outputs of all ranks, joined: [..., f]; case.given: the dims before the last."""
    return evidence.whole_numbers(0, *case.given, PER_RANK * len(case.members(0)))


def incoming(case: Case) -> Tensor:
    """Make the gradient of the joined outputs, the same on every rank: [..., f]."""
    return evidence.whole_numbers(1, *whole(case).shape)


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> passes.TwoPasses:
    """Run both passes with this rank's outputs."""
    x = passes.piece(whole(case), case, rank, -1)
    return passes.both(lambda x: function(x, group), {"x": x}, {"output": incoming(case)})


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute what a rank should get."""
    gradient = passes.piece(incoming(case), case, rank, -1)
    return {"output": whole(case), "x.grad": gradient}


def budget(case: Case) -> float:
    """Return the bytes that a rank sends to gather the outputs."""
    return collectives.all_gather(whole(case).nbytes, len(case.members(0))).sent


def _given(case: Case) -> str:
    pieces = [passes.piece(whole(case), case, rank, -1) for rank in case.members(0)]
    shown = "; ".join(f"{evidence.show(x)} on rank {rank}" for rank, x in enumerate(pieces))
    return f"x = {shown}; the gradient {evidence.show(incoming(case))} comes in"


has = partial(passes.has, reference=reference, given=_given)

EXERCISE = Exercise(
    name="tensor_parallel.gather_from_ranks",
    prompt="Join the outputs that are cut over ranks, and give each rank its part of the gradient.",
    starter=STARTER,
    hints=(
        (
            "After the gather all ranks compute the same. What does that say about the gradients "
            "that come back to them?"
        ),
        (
            "Forward joins, so backward cuts. All ranks have the same gradient of the joined "
            "outputs; a sum would count it once for every rank."
        ),
        (
            "comm.all_gather joins along the first dim: gather x[None], and torch.cat the N "
            "tensors along the last. In backward nothing is summed, because all ranks have the "
            "same gradient: a rank takes its own part, and no other rank needs it."
        ),
    ),
    compare="shardlab.ranks.tensor_parallel.conjugates.GatherFromRanks",
    points=2,
    cases=[
        Case(world_size=1, title="one vector", given=()),
        Case(world_size=2, title="one vector", given=()),
        Case(world_size=2, title="two vectors", given=(2,)),
        Case(world_size=3, title="one vector", given=()),
        Case(world_size=4, title="two sequences of three tokens", given=(2, 3)),
        Case(world_size=4, title="two vectors", given=(2,), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has all outputs, joined along the last dim": has("output"),
        "a rank's outputs get their part of the gradient": has("x.grad"),
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "forward sends one all-gather": evidence.sends_at_most(budget, "forward"),
        "backward sends nothing": evidence.sends_at_most(lambda case: 0, "backward"),
    },
)
