"""What exercises on ring attention share: the ranks' queries and blocks, and one process's answer.

Shapes: H heads, c tokens on each rank, S tokens on all, e numbers per head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab.sharding import sequences

from .. import evidence
from ..checker import Case, Dependent, Finding, on_each_rank
from ..tensors import Comparison, Returned, piece
from .messages import moves
from .steps import SEND

HEADS, TOKENS, WIDTH = 2, 6, 4  # H, c, e
BLOCK = HEADS * TOKENS * WIDTH  # numbers of a rank's keys, or of its values
LARGEST = 4 * BLOCK  # numbers: keys, values and both gradients of one rank


@dataclass(frozen=True)
class Given:
    """How tokens are placed, what queries see, and how large scores are."""

    placement: str = "contiguous"
    causal: bool = True
    far: bool = False  # scores of every other query are around 800, and of the others around -800


def order(case: Case) -> Tensor:
    """Return where each token stands in the sequence, in the order of ranks: [S]."""
    ranks = len(case.members(0))
    places = sequences.place(TOKENS * ranks, ranks, case.given.placement)
    return torch.tensor([position for runs in places for run in runs for position in run])


def mask(case: Case) -> Tensor:
    """Return which keys each query sees, both in the order of ranks: [S, S]."""
    positions = order(case)
    seen = positions <= positions[:, None]
    return seen if case.given.causal else torch.ones_like(seen)


def whole(case: Case) -> dict[str, Tensor]:
    """Make queries, keys, values and the gradient of the output, of all ranks: [H, S, e]."""
    shape = HEADS, len(order(case)), WIDTH
    made = {name: evidence.whole_numbers(n, *shape) / 4 for n, name in enumerate("qkv")}
    if case.given.far:
        made["q"][:, ::2, -1], made["q"][:, 1::2, -1] = 1, -1
        made["k"][..., -1] = 800 * WIDTH**0.5
    return made | {"dy": evidence.whole_numbers(3, *shape)}


def alone(case: Case) -> dict[str, Tensor]:
    """Compute outputs and gradients in one process: [H, S, ...]."""
    given = whole(case)
    q, k, v = leaves = [given[name].requires_grad_() for name in "qkv"]
    scores = (q @ k.mT / WIDTH**0.5).masked_fill(~mask(case), -torch.inf)
    y = scores.softmax(-1) @ v
    gradients = torch.autograd.grad(y, leaves, given["dy"])
    named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return named | {"y": y.detach(), "lse": scores.detach().logsumexp(-1, keepdim=True)}


def mine(tensors: dict[str, Tensor], case: Case, rank: int) -> dict[str, Tensor]:
    """Take a rank's tokens of tensors of all ranks, and its rows of the mask."""
    return {name: piece(x, case, rank, -2) for name, x in tensors.items()}


def comparison(arguments: str, results: str) -> Comparison:
    """Compare these results; the function gets these tensors, both by name, then mask and group."""
    outputs = tuple(results.split())

    def inputs(case: Case, rank: int) -> dict[str, Tensor]:
        every = mine(whole(case) | alone(case) | {"mask": mask(case)}, case, rank)
        return {name: every[name] for name in [*arguments.split(), "mask"]}

    def reference(case: Case, rank: int) -> evidence.Named:
        every = mine(alone(case), case, rank)
        return {name: every[name] for name in outputs}

    return Comparison(
        inputs=inputs, reference=reference, outputs=outputs, given=given, advice=advice
    )


def advice(got: Tensor | None) -> str:
    """Say what makes a result that is not a number."""
    if got is None or bool(got.isfinite().all()):
        return ""
    return (
        "subtract a log-sum-exp before you take exp; "
        "that of a block of which a query sees no key is -inf"
    )


def sends(blocks: Callable[[int], int], words: str) -> Dependent:
    """Ask that no rank of n sends more than `blocks(n)` blocks of keys, values or gradients."""
    size = BLOCK * evidence.NUMBER

    def budget(case: Case) -> float:
        return blocks(len(case.members(0))) * size

    return moves(SEND, budget, words, given, ("blocks", size))


@Dependent
@on_each_rank
def never_has_all_keys(case: Case, rank: int, seen: Returned) -> Finding | None:
    """Ask for no tensor as large as the keys of all ranks, or the scores of all keys."""
    if seen.largest <= LARGEST:
        return None
    expected = f"tensors of at most {LARGEST} numbers, 4 blocks"
    advice = "use each block as it comes by, and pass it on"
    return Finding(given(case), expected, f"one of {seen.largest} on rank {rank}", advice)


def given(case: Case) -> str:
    """Describe the case's input."""
    ranks = len(case.members(0))
    seen = "causal" if case.given.causal else "every query sees every key"
    far = ", scores around 800 and -800" * case.given.far
    return f"{TOKENS} tokens on each of {ranks} ranks, {case.given.placement}, {seen}{far}"


def case(ranks: int, *, group_size: int | None = None, **more: Any) -> Case:
    """Make a case of `ranks` ranks."""
    chosen = Given(**more)
    far = ", large scores" * chosen.far
    title = f"{chosen.placement}, {'causal' if chosen.causal else 'no mask'}{far}"
    return Case(world_size=ranks, title=title, given=chosen, group_size=group_size)


CASES = [
    case(1),
    case(2, causal=False),
    case(2),
    case(2, far=True),
    case(3),
    case(3, placement="zig-zag"),
    case(4, placement="zig-zag"),
    case(4, group_size=2),
]
