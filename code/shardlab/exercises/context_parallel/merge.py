"""Exercise: merge two partial softmaxes by their log-sum-exp.

Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867) merge a softmax online. Ring
attention merges one block of keys after another so.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise, Finding

WIDTH = 2  # e
OUTPUTS = "y", "lse"


@dataclass(frozen=True)
class Given:
    """How many queries and keys there are, what is added to every score, and what is hidden."""

    queries: int
    keys: tuple[int, int]  # of each part
    shift: float = 0.0
    apart: bool = False  # of every other query's scores it is subtracted instead
    hidden: bool = False  # the first query sees no key of part a, the last none of part b


def attention(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to some keys, or to none: scores [c, n], values [n, e] -> y [c, e], lse [c, 1]."""
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp().nan_to_num() @ values, lse


def whole(case: Case) -> tuple[Tensor, Tensor]:
    """Make the scores of all keys, [c, n], and their values, [n, e]."""
    given: Given = case.given
    scores = evidence.whole_numbers(3, given.queries, sum(given.keys))
    scores += given.shift
    if given.apart:
        scores[1::2] -= 2 * given.shift
    if given.hidden:
        scores[0, : given.keys[0]] = -torch.inf
        scores[-1, given.keys[0] :] = -torch.inf
    return scores, evidence.whole_numbers(1, sum(given.keys), WIDTH)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Attend to both parts of the keys."""
    cut = [x.split(list(case.given.keys), dim) for dim, x in zip((1, 0), whole(case), strict=True)]
    found = [x for pair in zip(*cut, strict=True) for x in attention(*pair)]
    return dict(zip(("y_a", "lse_a", "y_b", "lse_b"), found, strict=True))


def reference(case: Case, rank: int) -> evidence.Named:
    """Take one softmax over all keys."""
    return dict(zip(OUTPUTS, attention(*whole(case)), strict=True))


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    outputs=OUTPUTS,
    pure=True,
    call=lambda function, parts, *_: function(*parts.values()),
)


def is_finite(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that no number is infinite, or not a number."""
    (seen,) = observed
    if seen.result is not None:
        return TENSORS.has(*OUTPUTS)(case, observed)
    if all(x.isfinite().all() for x in seen.got.values()):
        return None
    shown = ", ".join(evidence.show(x) for x in seen.got.values())
    advice = "subtract a log-sum-exp before you take exp, and let exp(-inf) be 0"
    return Finding(TENSORS.describe(case, 0), "finite numbers", shown, advice)


APART = 2, (2, 3), 1000.0, True


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
        _case("scores of one query around 1000, of the other around -1000", *APART),
    ],
    attempt=TENSORS.attempt,
    properties={
        "all numbers are finite": is_finite,
        "lse is that of all keys together": TENSORS.has("lse"),
        "y is that of one softmax over all keys": TENSORS.has("y"),
        "the arguments stay what they were": evidence.leaves_arguments,
    },
)
