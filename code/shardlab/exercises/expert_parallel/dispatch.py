"""Exercise: send tokens to their experts, each token once to a rank, with its weights.

`plain.expert_parallel` sends a token once for each expert, and multiplies by the weights at home.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise
from ..shared import tokens


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Make a rank's tokens, and the weights of the experts that they chose."""
    return {"x": tokens.hidden(case, rank), "weights": tokens.weights(case, rank)}


def call(function: Any, given: Mapping[str, Tensor], group: Any, case: Case, rank: int) -> Any:
    """Pass tokens, the experts that they chose, weights, the number of experts, and the group."""
    chosen = tokens.chosen(case, rank)
    return function(given["x"], chosen, given["weights"], case.given.num_experts, group)


def incoming(case: Case, rank: int) -> dict[str, Tensor]:
    """Make the gradients of rows and shares."""
    found = tokens.received(case, rank, tokens.whole(case, rank))
    seeds = {"rows": 20 + rank, "shares": 30 + rank}
    return {name: evidence.whole_numbers(seeds[name], *x.shape) for name, x in found.items()}


def reference(case: Case, rank: int) -> evidence.Named:
    """Send tokens of all ranks in one process; take the results and gradients of a rank."""
    named = {name: x.requires_grad_() for name, x in tokens.whole(case, rank).items()}
    results: list[Tensor] = []
    gradients: list[Tensor] = []
    for each in case.members(rank):
        results += tokens.received(case, each, named).values()
        gradients += incoming(case, each).values()
    mine = [named[f"x {rank}"], named[f"weights {rank}"]]
    x, weights = torch.autograd.grad(results, mine, gradients)
    found = tokens.received(case, rank, named)
    return {**found, "x.grad": x, "weights.grad": weights}


def row_bytes(case: Case) -> int:
    """Return the bytes of a row with its shares."""
    given: tokens.Given = case.given
    here = given.num_experts // len(case.members(0))
    return evidence.NUMBER * (tokens.WIDTH + here)


def ahead(case: Case, rank: int) -> float:
    """Return the bytes of a rank's rows for others, and of their numbers."""
    numbers = evidence.NUMBER * (len(case.members(rank)) - 1)
    return numbers + row_bytes(case) * tokens.leaving(case, rank)


def back(case: Case, rank: int) -> float:
    """Return the bytes of the gradients of rows that came from others."""
    return row_bytes(case) * tokens.arriving(case, rank)


TENSORS = tensors.Comparison(
    inputs=inputs, reference=reference, incoming=incoming, call=call, given=tokens.describe
)
EXERCISE = Exercise(
    name="expert_parallel.dispatch",
    compare="shardlab.ranks.expert_parallel.dispatch.TokenDispatcher",
    points=4,
    cases=tokens.CASES,
    attempt=TENSORS.attempt,
    properties={
        "every rank has the tokens of its experts": TENSORS.has("rows"),
        "every rank has the weights of its experts": TENSORS.has("shares"),
        "tokens and weights get their gradients": TENSORS.has("x.grad", "weights.grad"),
        "tokens and weights stay what they were": evidence.leaves_arguments,
        "forward sends a token once to a rank": evidence.each_sends_at_most(ahead, "forward"),
        "forward sends two messages": evidence.sends_messages(2, "forward"),
        "backward sends a gradient once": evidence.each_sends_at_most(back, "backward"),
        "backward sends one message": evidence.sends_messages(1, "backward"),
    },
)
