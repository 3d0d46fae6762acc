"""Exercise: merge two partial softmaxes by their log-sum-exp.

Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867) merge a softmax online. Ring
attention merges one block of keys after another so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge, describe

WIDTH = 2  # e
PAIR = "y and lse, two tensors"
NAMES = ("y_a", "lse_a", "y_b", "lse_b")


@dataclass(frozen=True)
class Given:
    """How many queries and keys there are, what is added to every score, and what is hidden."""

    queries: int
    keys: tuple[int, int]  # of each part
    shift: float = 0.0
    hidden: bool = False  # the first query sees no key of part a, the last none of part b


@dataclass(frozen=True)
class Merged:
    """What the function returned; a description instead of tensors where it is something else."""

    got: Any
    changed: list[str]


def attention(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to some keys, or to none: scores [c, n], values [n, e] -> y [c, e], lse [c, 1]."""
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp().nan_to_num() @ values, lse


def whole(case: Case) -> tuple[Tensor, Tensor]:
    """Make the scores of all keys, [c, n], and their values, [n, e]."""
    given: Given = case.given
    scores = evidence.whole_numbers(3, given.queries, sum(given.keys)) + given.shift
    if given.hidden:
        scores[0, : given.keys[0]] = -torch.inf
        scores[-1, given.keys[0] :] = -torch.inf
    return scores, evidence.whole_numbers(1, sum(given.keys), WIDTH)


def parts(case: Case) -> dict[str, Tensor]:
    """Make the arguments of the function, by name."""
    scores, values = whole(case)
    cut = [x.split(list(case.given.keys), dim) for x, dim in ((scores, 1), (values, 0))]
    found = [x for pair in zip(*cut, strict=True) for x in attention(*pair)]
    return dict(zip(NAMES, found, strict=True))


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Merged:
    """Call the function with both parts."""
    given = parts(case)
    result = function(*given.values())
    changed = evidence.changed(parts(case), given)
    try:
        y, lse = result
        return Merged([y.detach().clone(), lse.detach().clone()], changed)
    except (TypeError, ValueError, AttributeError):
        return Merged(describe(result), changed)


def returns(place: int, name: str) -> Judge:
    """Compare one of the two results with that of one softmax over all keys."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        (seen,) = observed
        if isinstance(seen.got, str):
            return Finding(_given(case), PAIR, seen.got)
        right, got = attention(*whole(case))[place], seen.got[place]
        at = evidence.first_difference(right, got)
        if at is None:
            return None
        shown = evidence.show_got(got, right, at)
        return Finding(_given(case), f"{name} = {evidence.show(right, at)}", f"{name} = {shown}")

    return judge


def is_finite(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that no number is infinite, or not a number."""
    (seen,) = observed
    if isinstance(seen.got, str):
        return Finding(_given(case), PAIR, seen.got)
    if all(x.isfinite().all() for x in seen.got):
        return None
    shown = ", ".join(evidence.show(x) for x in seen.got)
    advice = "subtract a log-sum-exp before you take exp, and let exp(-inf) be 0"
    return Finding(_given(case), "finite numbers", shown, advice)


def _given(case: Case) -> str:
    shown = [f"{name} = {evidence.show(x)}" for name, x in parts(case).items()]
    return ", ".join(shown)


def _case(title: str, *given: Any, **more: Any) -> Case:
    return Case(world_size=1, title=title, given=Given(*given, **more))


EXERCISE = Exercise(
    name="context_parallel.merge",
    compare="shardlab.ranks.context_parallel.tiles.attend",
    points=2,
    pure=True,
    cases=[
        _case("one query, a key in each part", 1, (1, 1)),
        _case("two queries", 2, (1, 2)),
        _case("three queries, one sees no key of a part", 3, (2, 2), hidden=True),
        _case("scores around 1000", 2, (2, 3), 1000.0),
        _case("scores around -1000", 2, (2, 3), -1000.0),
    ],
    attempt=attempt,
    properties={
        "all numbers are finite": is_finite,
        "lse is that of all keys together": returns(1, "lse"),
        "y is that of one softmax over all keys": returns(0, "y"),
        "the arguments stay what they were": evidence.leaves_arguments,
    },
)
