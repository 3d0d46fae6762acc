"""Exercise: bring the experts' results home, one row for each row that came, as a weighted sum.

`plain.expert_parallel` sends a row home for each expert; `ranks.expert_parallel` sends sums.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise
from ..shared import tokens


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Make what the experts of a rank have computed, [pairs, h], and the shares of its rows."""
    shares = tokens.received(case, rank, tokens.whole(case, rank))["shares"]
    count = int(shares.count_nonzero())
    return {"y": evidence.whole_numbers(40 + rank, count, tokens.WIDTH), "shares": shares}


def incoming(case: Case, rank: int) -> dict[str, Tensor]:
    """Make the gradient of the sums: [T, h]."""
    return {"output": evidence.whole_numbers(50 + rank, *tokens.hidden(case, rank).shape)}


def call(function: Any, given: Mapping[str, Tensor], group: Any, case: Case, rank: int) -> Any:
    """Pass results and shares, and how the tokens of this rank had been sent."""
    sent = [tokens.going(case, rank, to) for to in case.members(rank)]
    receives = [len(numbers) for numbers in sent]
    sends = rows_from_each(case, rank)
    count = len(tokens.hidden(case, rank))
    return function(*given.values(), torch.cat(sent), count, sends, receives, group)


def rows_from_each(case: Case, rank: int) -> list[int]:
    """Count the rows that came from each rank."""
    return [len(tokens.going(case, source, rank)) for source in case.members(rank)]


def rows_home(case: Case, rank: int, y: Tensor, shares: Tensor) -> list[Tensor]:
    """Weigh and add up what the experts of a rank computed: [A, h], the rows of each rank."""
    by_expert = shares.T  # [E/N, A]
    dense = y.new_zeros(*by_expert.shape, y.shape[1])  # [E/N, A, h]
    dense[by_expert != 0] = y
    rows = (by_expert[..., None] * dense).sum(0)  # [A, h]
    return [*rows.split(rows_from_each(case, rank))]


def reference(case: Case, rank: int) -> evidence.Named:
    """Add up results of all ranks in one process; take the sums and gradients of a rank."""
    members = case.members(rank)
    leaves = {each: [x.requires_grad_() for x in inputs(case, each).values()] for each in members}
    sums = {each: tokens.hidden(case, each) * 0 for each in members}
    for there in members:
        for source, rows in zip(members, rows_home(case, there, *leaves[there]), strict=True):
            numbers = tokens.going(case, source, there)
            sums[source] = sums[source].index_add(0, numbers, rows)
    gradients = [incoming(case, each)["output"] for each in members]
    y, shares = torch.autograd.grad([*sums.values()], leaves[rank], gradients)
    return {"output": sums[rank].detach(), "y.grad": y, "shares.grad": shares}


def ahead(case: Case, rank: int) -> float:
    """Return the bytes of the rows that came from other ranks."""
    return evidence.NUMBER * tokens.WIDTH * tokens.arriving(case, rank)


def back(case: Case, rank: int) -> float:
    """Return the bytes of the gradients of rows that a rank had sent to others."""
    return evidence.NUMBER * tokens.WIDTH * tokens.leaving(case, rank)


TENSORS = tensors.Comparison(
    inputs=inputs, reference=reference, incoming=incoming, call=call, given=tokens.describe
)
EXERCISE = Exercise(
    name="expert_parallel.combine",
    compare="shardlab.ranks.expert_parallel.dispatch.TokenDispatcher",
    points=3,
    cases=[
        *tokens.CASES[:2],
        Case(1, "tokens without a slot", tokens.Given((3,), 2, without_slot=True)),
        *tokens.CASES[2:],
    ],
    attempt=TENSORS.attempt,
    properties={
        "every token has its weighted sum": TENSORS.has("output"),
        "results get their gradient": TENSORS.has("y.grad"),
        "weights get their gradient": TENSORS.has("shares.grad"),
        "results and weights stay what they were": evidence.leaves_arguments,
        "forward sends a row for each that came": evidence.each_sends_at_most(ahead, "forward"),
        "forward sends one message": evidence.sends_messages(1, "forward"),
        "backward sends a row for each that was sent": evidence.each_sends_at_most(
            back, "backward"
        ),
        "backward sends one message": evidence.sends_messages(1, "backward"),
    },
)
