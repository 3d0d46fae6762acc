"""Exercise: the balance loss of all tokens on all ranks, in one message, with its gradient.

In `ranks.mixture` each rank has a loss of its own, and the mean of these losses is the loss of the
batch if all ranks have equally many tokens. Here every rank has the loss of the whole batch.
"""

import torch
from torch import Tensor

from shardlab.costs import collectives

from .. import evidence, tensors
from ..checker import Case, Exercise
from ..shared import tokens


def scores_of(case: Case, rank: int) -> Tensor:
    """Make the scores of a rank's tokens: [T, E]."""
    count = case.given.num_tokens[tokens.place(case, rank)]
    return evidence.whole_numbers(60 + rank, count, case.given.num_experts) / 2


def incoming(case: Case, rank: int) -> dict[str, Tensor]:
    """Make the gradient of the loss: [], the same on every rank."""
    return {"output": evidence.whole_numbers(7)}


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute the loss of all tokens in one process; take the gradient of a rank's scores."""
    members = case.members(rank)
    leaves = {each: scores_of(case, each).requires_grad_() for each in members}
    chosen = torch.cat([tokens.chosen(case, each) for each in members])
    means = torch.cat([*leaves.values()]).softmax(-1).mean(0)
    counts = torch.stack([(chosen == n).sum() for n in range(len(means))]).double()
    loss = len(means) * (counts / counts.sum() * means).sum()
    (gradient,) = torch.autograd.grad(loss, leaves[rank], incoming(case, rank)["output"])
    return {"output": loss.detach(), "scores.grad": gradient}


def budget(case: Case) -> float:
    """Return the bytes of an all-reduce of two numbers for each expert."""
    payload = 2 * case.given.num_experts * evidence.NUMBER
    return collectives.ring_all_reduce(payload, len(case.members(0))).sent


TENSORS = tensors.Comparison(
    inputs=lambda case, rank: {"scores": scores_of(case, rank)},
    reference=reference,
    incoming=incoming,
    call=lambda function, given, group, case, rank: function(
        given["scores"], tokens.chosen(case, rank), group
    ),
    given=tokens.describe,
)
EXERCISE = Exercise(
    name="expert_parallel.balance",
    compare="shardlab.ranks.mixture.Mixture.balance_loss",
    points=3,
    cases=[
        Case(1, "2 tokens", tokens.Given((2,), 2)),
        Case(1, "3 tokens, two choices", tokens.Given((3,), 4, 2)),
        Case(2, "2 tokens each", tokens.Given((2, 2), 2)),
        Case(2, "unequal batches", tokens.Given((3, 1), 4, 2)),
        Case(3, "2 tokens each", tokens.Given((2, 2, 2), 3, 2)),
        Case(4, "a rank without tokens", tokens.Given((2, 0, 3, 1), 4, 2)),
        Case(4, "2 or 3 tokens", tokens.Given((2, 3), 4, 2), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the loss of all tokens": TENSORS.has("output"),
        "scores get the gradient of this loss": TENSORS.has("scores.grad"),
        "scores stay what they were": evidence.leaves_arguments,
        "forward sends 2 * E numbers": evidence.sends_at_most(budget, "forward"),
        "forward sends one message": evidence.sends_messages(1, "forward"),
        "backward sends nothing": evidence.sends_messages(0, "backward"),
    },
)
