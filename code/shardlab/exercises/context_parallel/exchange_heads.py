"""Exercise: Ulysses with one exchange for queries, keys and values, and one for the output.

`plain.context_parallel.Context.ulysses` sends queries, keys and values one after the other.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardlab.costs import collectives

from .. import evidence, tensors
from ..checker import Case, Exercise

TOKENS, WIDTH = 2, 4  # c, e
MESSAGES = 2  # in each pass


@dataclass(frozen=True)
class Given:
    """The heads of queries, and those of keys and values."""

    heads: int
    kv_heads: int


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally: [H, S, e], with fewer heads of keys and values or as many."""
    options: Any = {"is_causal": True, "enable_gqa": True}
    return scaled_dot_product_attention(q[None], k[None], v[None], **options)[0]


def whole(case: Case) -> dict[str, Tensor]:
    """Make queries, keys and values of all tokens: [heads, S, e]."""
    given: Given = case.given
    heads = {"q": given.heads, "k": given.kv_heads, "v": given.kv_heads}
    length = TOKENS * len(case.members(0))
    shapes = {name: (count, length, WIDTH) for name, count in heads.items()}
    numbers = enumerate(shapes.items())
    return {name: evidence.whole_numbers(n, *shape) / 4 for n, (name, shape) in numbers}


def incoming(case: Case) -> Tensor:
    """Make the gradient of the output of all tokens: [H, S, e]."""
    return evidence.whole_numbers(3, *whole(case)["q"].shape)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Take a rank's tokens."""
    return {name: tensors.piece(x, case, rank, 1) for name, x in whole(case).items()}


def reference(case: Case, rank: int) -> evidence.Named:
    """Attend in one process, and take the output and the gradients of a rank's tokens."""
    leaves = {name: x.requires_grad_() for name, x in whole(case).items()}
    y = attend(*leaves.values())
    found = torch.autograd.grad(y, [*leaves.values()], incoming(case))
    named = {f"{name}.grad": x for name, x in zip(leaves, found, strict=True)}
    every = {"output": y.detach()} | named
    return {name: tensors.piece(x, case, rank, 1) for name, x in every.items()}


def budget(case: Case) -> float:
    """Return the bytes that a rank sends: queries, keys, values and outputs, all but its own."""
    given: Given = case.given
    numbers = 2 * (given.heads + given.kv_heads) * TOKENS * WIDTH
    return collectives.all_to_all(evidence.NUMBER * numbers, len(case.members(0))).sent


def _given(case: Case) -> str:
    given: Given = case.given
    ranks = len(case.members(0))
    tokens = f"{TOKENS} tokens on each of {ranks} ranks"
    return f"{given.heads} heads, {given.kv_heads} of keys, {tokens}"


def _case(ranks: int, heads: int, kv_heads: int, group_size: int | None = None) -> Case:
    title = f"{heads} heads, {kv_heads} of keys and values"
    given = Given(heads, kv_heads)
    return Case(world_size=ranks, title=title, given=given, group_size=group_size)


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    incoming=lambda case, rank: {"output": tensors.piece(incoming(case), case, rank, 1)},
    call=lambda function, x, group, case, rank: function(*x.values(), attend, group),
    given=_given,
)
EXERCISE = Exercise(
    name="context_parallel.exchange_heads",
    compare="shardlab.plain.context_parallel.Context.ulysses",
    points=3,
    cases=[
        _case(1, 2, 2),
        _case(2, 2, 2),
        _case(2, 4, 2),
        _case(3, 3, 3),
        _case(4, 8, 4),
        _case(4, 4, 2, group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the output of its tokens": TENSORS.has("output"),
        "queries, keys and values get their gradients": TENSORS.has("q.grad", "k.grad", "v.grad"),
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "forward sends each number to one rank": evidence.sends_at_most(budget, "forward"),
        "forward sends two messages": evidence.sends_messages(MESSAGES, "forward"),
        "backward sends no more than forward": evidence.sends_at_most(budget, "backward"),
        "backward sends two messages": evidence.sends_messages(MESSAGES, "backward"),
    },
)
