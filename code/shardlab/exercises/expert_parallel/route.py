"""Exercise: choose experts for tokens, and hand out their slots, first choices first.

GShard hands slots to the first choices of all tokens before any second choice: algorithm 1 of
https://arxiv.org/abs/2006.16668. `ranks.mixture` hands them out token by token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm

from .. import evidence, tensors
from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank


@dataclass(frozen=True)
class Given:
    """The scores of each token, and the rules."""

    scores: Sequence[Sequence[float]]
    per_token: int = 1
    before: bool = True
    slots: int = 99


@dataclass(frozen=True, kw_only=True)
class Routed(evidence.Seen):
    """Experts, weights and the gradient of the scores; `result` says what came instead."""

    chosen: Tensor | None = None
    weights: Tensor | None = None
    gradient: Tensor | None = None


def scores_of(case: Case) -> Tensor:
    """Make the scores: [T, E]."""
    return torch.tensor(case.given.scores, dtype=torch.float64)


def incoming(case: Case) -> Tensor:
    """Make the gradient of the weights: [T, k]."""
    return evidence.whole_numbers(1, len(case.given.scores), case.given.per_token)


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Routed:
    """Route all tokens, and send gradients of the weights back to the scores."""
    given: Given = case.given
    scores = nn.Parameter(scores_of(case))
    found = function(scores, given.per_token, given.before, given.slots)
    shape = [len(given.scores), given.per_token]
    outputs = tensors.listed(found, 2)
    if [list(x.shape) for x in outputs if isinstance(x, Tensor)] != [shape, shape]:
        return Routed(result=describe(found))
    chosen, weights = outputs
    if weights.requires_grad:
        weights.backward(incoming(case))
    return Routed(
        chosen=chosen.detach().clone(),
        weights=weights.detach().clone(),
        gradient=scores.grad,
        changed=evidence.changed({"scores": scores_of(case)}, {"scores": scores}),
    )


def right(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Route choice by choice and token by token: experts, weights, the gradient of the scores."""
    given: Given = case.given
    scores = scores_of(case).requires_grad_()
    num_experts = scores.shape[1]
    wanted = choices(case)
    free = [given.slots] * num_experts
    chosen = torch.full_like(wanted, num_experts)
    weights = torch.zeros(wanted.shape, dtype=torch.float64)
    for place in range(given.per_token):
        for token, expert in enumerate(wanted[:, place].tolist()):
            over = scores[token] if given.before else scores[token, wanted[token]]
            if free[expert]:
                free[expert] -= 1
                chosen[token, place] = expert
                weights[token, place] = (scores[token, expert] - over.logsumexp(0)).exp()
    (gradient,) = torch.autograd.grad(weights, scores, incoming(case))
    return chosen, weights.detach(), gradient


def choices(case: Case) -> Tensor:
    """List the experts that each token chooses, with or without a slot: [T, k]."""
    given: Given = case.given
    ranked = [sorted(range(len(row)), key=lambda n: -row[n]) for row in given.scores]
    return torch.tensor([experts[: given.per_token] for experts in ranked])


def is_pair(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for two tensors with a row for each token."""
    (seen,) = observed
    if seen.result is None:
        return None
    shape = [len(case.given.scores), case.given.per_token]
    return Finding(_given(case), f"experts and weights, of shape {shape}", seen.result)


@Dependent
@on_each_rank
def are_highest(case: Case, rank: int, seen: Routed) -> Finding | None:
    """Compare the experts with the highest-scoring ones, except where a token found no slot."""
    if seen.chosen is None:
        return None
    wanted, num_experts = choices(case), len(case.given.scores[0])
    if ((seen.chosen == wanted) | (seen.chosen == num_experts)).all():
        return None
    return Finding(_given(case), f"choices {wanted.tolist()}", f"{seen.chosen.tolist()}")


@Dependent
@on_each_rank
def have_slots(case: Case, rank: int, seen: Routed) -> Finding | None:
    """Compare which choices have found a slot."""
    if seen.chosen is None:
        return None
    expected, num_experts = right(case)[0], len(case.given.scores[0])
    if torch.equal(seen.chosen == num_experts, expected == num_experts):
        return None
    return Finding(_given(case), f"experts {expected.tolist()}", f"{seen.chosen.tolist()}")


def returns(name: str, place: int) -> Dependent:
    """Compare weights, or the gradient of the scores."""

    @Dependent
    @on_each_rank
    def judge(case: Case, rank: int, seen: Routed) -> Finding | None:
        if seen.result is not None:
            return None
        expected, got = right(case)[place], getattr(seen, name)
        at = evidence.first_difference(expected, got)
        if at is None:
            return None
        shown = f"{name} {evidence.show(expected, at)}"
        advice = "no gradient has arrived at the scores" if got is None else ""
        return Finding(_given(case), shown, evidence.show_got(got, expected, at), advice)

    return judge


def _given(case: Case) -> str:
    given: Given = case.given
    softmax = "before" if given.before else "after"
    rules = f"per_token={given.per_token}, softmax {softmax} the choice, slots={given.slots}"
    return f"scores={[list(row) for row in given.scores]}, {rules}"


def _case(title: str, *given: Any, **more: Any) -> Case:
    return Case(world_size=1, title=title, given=Given(*given, **more))


CROWD = ((3.0, 2.0, 1.0), (2.0, 3.0, 1.0), (3.0, 2.0, 0.0), (1.0, 2.0, 3.0))

EXERCISE = Exercise(
    name="expert_parallel.route",
    compare="shardlab.ranks.mixture.Mixture.choose",
    points=3,
    pure=True,
    cases=[
        _case("one token, one of two experts", ((1.0, 2.0),)),
        _case("one token, two of three, softmax before", ((1.0, 3.0, 2.0),), 2),
        _case("one token, two of three, softmax after", ((1.0, 3.0, 2.0),), 2, before=False),
        _case("equal scores", ((2.0, 2.0, 1.0, 2.0), (0.0, 1.0, 1.0, 1.0)), 2),
        _case("equal scores of 32 experts", ((1.0,) * 32,), 4, before=False),
        _case("two tokens, one slot", ((2.0, 1.0), (3.0, 0.0)), slots=1),
        _case("two choices, two slots", CROWD, 2, slots=2),
        _case("two choices, one slot, softmax after", CROWD, 2, before=False, slots=1),
    ],
    attempt=attempt,
    properties={
        "returns experts and weights of each token": is_pair,
        "experts are those with the highest scores": are_highest,
        "slots go to first choices first": have_slots,
        "weights come from the softmax, or are 0": returns("weights", 1),
        "scores get their gradient": returns("gradient", 2),
        "scores stay what they were": evidence.leaves_arguments,
    },
)
