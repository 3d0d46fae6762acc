"""Exercise: a third gate, which joins the outputs of a layer that is cut by columns.

`plain.tensor_parallel` never joins them. Megatron-LM does, if asked to (`gather_output`).
"""

from torch import Tensor

from shardlab.costs import collectives

from .. import evidence, tensors
from ..checker import Case, Exercise

PER_RANK = 2  # f/N


def whole(case: Case) -> Tensor:
    """Make the outputs of all ranks, joined: [..., f]; case.given: the dims before the last."""
    return evidence.whole_numbers(0, *case.given, PER_RANK * len(case.members(0)))


def incoming(case: Case) -> Tensor:
    """Make the gradient of the joined outputs, the same on every rank: [..., f]."""
    return evidence.whole_numbers(1, *whole(case).shape)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Take a rank's outputs: [..., f/N]."""
    return {"x": tensors.piece(whole(case), case, rank, -1)}


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute what a rank should get."""
    gradient = tensors.piece(incoming(case), case, rank, -1)
    return {"output": whole(case), "x.grad": gradient}


def budget(case: Case) -> float:
    """Return the bytes that a rank sends to gather the outputs."""
    return collectives.all_gather(whole(case).nbytes, len(case.members(0))).sent


def _given(case: Case) -> str:
    shown = "; ".join(f"{evidence.show(inputs(case, r)['x'])} on rank {r}" for r in case.members(0))
    return f"x = {shown}; the gradient {evidence.show(incoming(case))} comes in"


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    incoming=lambda case, rank: {"output": incoming(case)},
    given=_given,
)
EXERCISE = Exercise(
    name="tensor_parallel.gather_from_ranks",
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
    attempt=TENSORS.attempt,
    properties={
        "every rank has all outputs, joined along the last dim": TENSORS.has("output"),
        "a rank's outputs get their part of the gradient": TENSORS.has("x.grad"),
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "forward sends one all-gather": evidence.sends_at_most(budget, "forward"),
        "backward sends nothing": evidence.sends_at_most(lambda case: 0, "backward"),
    },
)
