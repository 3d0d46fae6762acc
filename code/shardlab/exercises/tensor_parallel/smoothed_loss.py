"""Exercise: the loss with smoothed labels, from logits that no rank ever sees together.

`plain.tensor_parallel.cross_entropy` has labels without smoothing (Szegedy et al. 2016, section 7,
https://arxiv.org/abs/1512.00567). With smoothing every logit counts, and still three numbers of
each token are enough.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .. import evidence, tensors
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

TOKENS = (2, 3)  # B, S
VOCABULARY = 24  # words, which split over 1 to 4 ranks
NUMBERS = 3  # that a rank may all-reduce for each token


@dataclass(frozen=True)
class Given:
    """How much of the label goes to all words, and what is added to every logit."""

    smoothing: float
    shift: float = 0.0  # changes no loss


def whole(case: Case) -> Tensor:
    """Make the logits of all words: [B, S, V]."""
    given: Given = case.given
    return evidence.whole_numbers(0, *TOKENS, VOCABULARY, below=20) + given.shift


def targets() -> Tensor:
    """Return targets on each rank: [B, S]."""
    return torch.tensor([[0, 5, 23], [12, 17, 8]])


def incoming() -> Tensor:
    """Make the gradient of the losses, the same on every rank: [B, S]."""
    return evidence.whole_numbers(1, *TOKENS)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Take the logits of a rank's words: [B, S, V/N]."""
    return {"logits": tensors.piece(whole(case), case, rank, -1)}


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute torch's own cross-entropy of all logits, and take a rank's piece of the gradient."""
    logits = whole(case).requires_grad_()
    losses = functional.cross_entropy(
        logits.movedim(-1, 1), targets(), reduction="none", label_smoothing=case.given.smoothing
    )
    (gradient,) = torch.autograd.grad(losses, logits, incoming())
    return {"output": losses.detach(), "logits.grad": tensors.piece(gradient, case, rank, -1)}


@Dependent
@on_each_rank
def makes_no_larger_tensor(case: Case, rank: int, seen: tensors.Returned) -> Finding | None:
    """Ask that no tensor has more numbers than a rank's logits: all logits would."""
    tokens = targets().numel()
    allowed = max(tokens * VOCABULARY // len(case.members(rank)), 2 * NUMBERS * tokens)
    if seen.largest <= allowed:
        return None
    expected = f"tensors of at most {allowed} numbers"
    return Finding(_given(case), expected, f"one of {seen.largest} numbers on rank {rank}")


def _given(case: Case) -> str:
    ranks = len(case.members(0))
    words = f"{VOCABULARY // ranks} of {VOCABULARY} words on each of {ranks} ranks"
    return f"{targets().numel()} tokens, {words}, smoothing {case.given.smoothing:g}, {case.title}"


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    incoming=lambda case, rank: {"output": incoming()},
    call=lambda function, x, group, case, rank: function(
        x["logits"], targets(), case.given.smoothing, group
    ),
    given=_given,
)
EXERCISE = Exercise(
    name="tensor_parallel.smoothed_loss",
    compare="shardlab.plain.tensor_parallel.cross_entropy",
    points=4,
    cases=[
        Case(1, "small logits", Given(0.0)),
        Case(1, "smoothed", Given(0.25)),
        Case(2, "small logits", Given(0.0)),
        Case(2, "smoothed", Given(0.25)),
        Case(2, "logits around 1000", Given(0.0, 1000.0)),
        Case(3, "logits around -1000, smoothed", Given(0.25, -1000.0)),
        Case(4, "smoothed", Given(0.5)),
        Case(4, "logits around 1000, smoothed", Given(0.25, 1000.0), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has torch's loss of every token": TENSORS.has("output"),
        "a rank's logits get their gradient": TENSORS.has("logits.grad"),
        "no rank makes a tensor larger than its own logits": makes_no_larger_tensor,
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "a rank sends no more than three numbers for each token": tensors.sends(
            lambda case: NUMBERS * evidence.NUMBER * targets().numel(), lambda case: 0
        ),
    },
)
