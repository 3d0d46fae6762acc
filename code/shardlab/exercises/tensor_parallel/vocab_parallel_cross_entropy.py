"""Exercise: the loss from pieces of the logits, which no rank ever sees together."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shardlab.ranks import comm

from .. import evidence
from ..checker import Case, Exercise, Finding
from ..shared import passes

TOKENS, VOCABULARY = 5, 24  # 24 words split over 1 to 4 ranks
NUMBERS = 3  # that a rank may all-reduce for each token
NUMBER = 8  # bytes

STARTER = '''\
import torch
from torch.nn import functional as F
from shardlab.ranks import comm
from shardlab.ranks.tensor_parallel.conjugates import SumOverRanks

def my_vocab_parallel_cross_entropy(logits, targets, group):
    """The loss of every token, on every rank.

    logits [N, V / ranks] are of this rank's words; targets [N] are among all V.
    """
    first = group.rank() * logits.shape[-1]  # number of this rank's first word
    mine = (targets - first) % logits.shape[-1]
    return F.cross_entropy(logits, mine, reduction="none")  # mend it
'''


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> passes.Seen:
    """Each rank has its words' logits; all have the targets, and go on alike with the losses."""
    logits, targets = passes.piece(_logits(case), case, rank, -1), _targets()
    return passes.both(lambda x: function(x, targets, group), {"logits": logits}, _incoming())


def reference(case: Case, rank: int) -> evidence.Named:
    """Torch's own cross-entropy of all logits; a rank has its piece of the gradient."""
    logits = _logits(case).requires_grad_()
    losses = F.cross_entropy(logits, _targets(), reduction="none")
    (gradient,) = torch.autograd.grad(losses, logits, _incoming())
    return {"output": losses.detach(), "logits.grad": passes.piece(gradient, case, rank, -1)}


def makes_no_larger_tensor(case: Case, seen: list[Any]) -> Finding | None:
    """No tensor has more numbers than a rank's logits: all logits would."""
    budget = max(TOKENS * VOCABULARY // len(case.members(0)), 2 * NUMBERS * TOKENS)
    for rank, mine in enumerate(seen):
        if mine.largest > budget:
            expected = f"tensors of at most {budget} numbers"
            return Finding(_told(case), expected, f"one of {mine.largest} numbers on rank {rank}")
    return None


def _logits(case: Case) -> Tensor:
    """case.given: what all of them are shifted by, which changes no loss."""
    return passes.numbers(0, TOKENS, VOCABULARY, below=20) + float(case.given)


def _targets() -> Tensor:
    return torch.tensor([0, 5, 23, 12, 17])  # some on each rank


def _incoming() -> Tensor:
    return passes.numbers(1, TOKENS)


def _told(case: Case) -> str:
    ranks = len(case.members(0))
    return f"{TOKENS} tokens, {VOCABULARY // ranks} of {VOCABULARY} words on each of {ranks} ranks, {case.title}"


EXERCISE = Exercise(
    name="tensor_parallel.vocab_parallel_cross_entropy",
    prompt="Compute every token's cross-entropy, with the logits of all words never on one rank.",
    starter=STARTER,
    hint=(
        "loss = log(sum of exp(logit - highest)) - (target's logit - highest). Three numbers of each token concern all "
        "ranks: the highest logit (an all-reduce with max, no gradient needed), the sum, and the target's logit, which "
        "one rank has and the others count as 0. SumOverRanks sums, and backward works by itself."
    ),
    points=4,
    cases=[
        Case(world_size=1, title="small logits", given=0.0),
        Case(world_size=2, title="small logits", given=0.0),
        Case(world_size=2, title="logits around 1000", given=1000.0),
        Case(world_size=3, title="logits around -1000", given=-1000.0),
        Case(world_size=4, title="small logits", given=0.0),
        Case(world_size=4, title="logits around 1000", given=1000.0, group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has torch's loss of every token": passes.has(("output",), reference, _told),
        "a rank's logits get their gradient": passes.has(("logits.grad",), reference, _told),
        "no rank makes a tensor larger than its own logits": makes_no_larger_tensor,
        "inputs and incoming gradients stay what they were": passes.leave_inputs,
        "a rank sends no more than three numbers for each token": passes.sends(
            lambda case: NUMBERS * NUMBER * TOKENS, lambda case: 0
        ),
    },
)
