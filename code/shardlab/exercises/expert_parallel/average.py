"""Exercise: which gradients are added up over which ranks, and what divides them.

`plain.expert_parallel` weighs the loss before backward. Here ranks count their tokens, and divide
afterwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from shardlab import comm
from shardlab.costs import collectives
from shardlab.ranks.observe import ledger

from .. import evidence, tensors
from ..checker import Case, Exercise, Finding, on_each_rank
from ..shared import tokens

SHAPES = {"shared 0": (2,), "shared 1": (1, 3), "expert 0": (3,), "expert 1": (2, 2)}
FROZEN = "shared 0"


@dataclass(frozen=True)
class Given:
    """The tokens of each rank, and the ranks that hold all experts.

    idle: the place of a rank whose experts receive no token. frozen: one shared parameter is.
    """

    num_tokens: Sequence[int]
    ep: int
    idle: int | None = None
    frozen: bool = False


def trained(case: Case, kind: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what is not frozen, of shared parameters or of experts."""
    frozen = [FROZEN] * case.given.frozen
    named = SHAPES.items()
    return {name: shape for name, shape in named if name.startswith(kind) and name not in frozen}


def gradients(case: Case, rank: int) -> evidence.Named:
    """Make the gradients that a rank has after backward; None where there are none."""
    given: Given = case.given
    place = tokens.place(case, rank)
    missing = [FROZEN] * given.frozen
    missing += [name for name in SHAPES if name[0] == "s"] * (not given.num_tokens[place])
    missing += [name for name in SHAPES if name[0] == "e"] * (given.idle == place)
    drawn = [evidence.whole_numbers(10 * rank + n, *x) for n, x in enumerate(SHAPES.values())]
    pairs = zip(SHAPES, drawn, strict=True)
    return {name: None if name in missing else gradient for name, gradient in pairs}


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> tensors.Returned:
    """Let the function average the gradients of this rank; return them by name."""
    before = gradients(case, rank)
    held = {name: nn.Parameter(torch.zeros(shape).double()) for name, shape in SHAPES.items()}
    held[FROZEN].requires_grad_(not case.given.frozen)
    for name, p in held.items():
        p.grad = before[name]
    shared = [p for name, p in held.items() if name.startswith("shared")]
    experts = [p for name, p in held.items() if name.startswith("expert")]
    count = case.given.num_tokens[tokens.place(case, rank)]
    with ledger.Ledger() as book:
        function(shared, experts, count, case.given.ep, group)
    after = {name: None if p.grad is None else p.grad.clone() for name, p in held.items()}
    return tensors.Returned(got=after, events=book.events)


def reference(case: Case, rank: int) -> evidence.Named:
    """Add up gradients over all ranks, or those with the same experts; divide by all tokens."""
    given: Given = case.given
    members = case.members(rank)
    found: evidence.Named = {}
    for name in {**trained(case, "shared"), **trained(case, "expert")}:
        every = 1 if name.startswith("shared") else given.ep
        holders = members[tokens.place(case, rank) % every :: every]
        parts = [gradients(case, each)[name] for each in holders]
        present = [part for part in parts if part is not None]
        found[name] = torch.stack(present).sum(0) / sum(given.num_tokens)
    return found


@on_each_rank
def leaves_frozen(case: Case, rank: int, seen: tensors.Returned) -> Finding | None:
    """Ask that a frozen parameter has no gradient."""
    got = seen.got[FROZEN]
    if not case.given.frozen or got is None:
        return None
    return Finding(case.title, f"{FROZEN}.grad = None on rank {rank}", evidence.show(got))


def budget(case: Case) -> float:
    """Return the bytes of an all-reduce of shared gradients and a number, and of the experts'."""
    ranks = len(case.members(0))
    shared = sum(map(prod, trained(case, "shared").values()))
    experts = sum(map(prod, trained(case, "expert").values()))
    sent = collectives.ring_all_reduce(evidence.NUMBER * (shared + 1), ranks).sent
    return (
        sent + collectives.ring_all_reduce(evidence.NUMBER * experts, ranks // case.given.ep).sent
    )


def describe(case: Case) -> str:
    """Describe the tokens, and the first gradients of shared parameters and of experts."""
    given: Given = case.given
    found = {rank: gradients(case, rank) for rank in range(case.world_size)}
    shown = [
        f"{name}.grad = {', '.join(evidence.show(each[name]) for each in found.values())}"
        for name in ("shared 1", "expert 0")
    ]
    tokens_of = f"num_tokens = {', '.join(map(str, given.num_tokens))}"
    return f"ep={given.ep}, on ranks 0, 1, ...: {tokens_of}; {'; '.join(shown)}"


has = partial(tensors.has, reference=reference, given=lambda case, rank: describe(case))

EXERCISE = Exercise(
    name="expert_parallel.average",
    compare="shardlab.plain.expert_parallel.LocalExperts.sum_gradients",
    points=3,
    cases=[
        Case(1, "ep=1", Given((3,), 1)),
        Case(2, "ep=1", Given((2, 2), 1)),
        Case(2, "ep=2", Given((2, 2), 2)),
        Case(2, "ep=2, unequal batches", Given((3, 1), 2)),
        Case(3, "ep=3", Given((1, 2, 3), 3)),
        Case(4, "ep=2", Given((2, 2, 2, 2), 2)),
        Case(4, "ep=2, a frozen parameter", Given((2, 1, 3, 2), 2, frozen=True)),
        Case(4, "ep=2, experts without tokens", Given((2, 0, 3, 1), 2, idle=1)),
        Case(4, "ep=1", Given((2, 3), 1), group_size=2),
    ],
    attempt=attempt,
    properties={
        "shared gradients are means over all tokens": has("shared"),
        "experts' gradients are means over all tokens": has("expert"),
        "frozen parameters get no gradient": leaves_frozen,
        "a rank sends two all-reduces": evidence.sends_at_most(budget),
        "a rank sends two messages": evidence.sends_messages(2),
    },
)
