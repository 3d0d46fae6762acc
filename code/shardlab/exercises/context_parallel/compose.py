"""Exercise: the affine map of a run of tokens, and one map of two.

`plain.linear_attention.attend` follows all heads at once; here it is one. Gated delta rule: Yang
et al. 2024, https://arxiv.org/abs/2412.06464
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge, describe

WIDTH = 2  # e
PAIR = "m and b, two tensors"


@dataclass(frozen=True)
class Given:
    """The gates of each token, and whether tokens follow that change the state."""

    keep: Sequence[float]
    write: Sequence[float]
    followed: bool = False


@dataclass(frozen=True)
class Composed:
    """What the function returned; a description instead of tensors where it is something else."""

    got: Any
    changed: list[str]


def arguments(case: Case) -> dict[str, Tensor]:
    """Make the tokens, and the map of those that follow: m = 1 and b = 0 if there are none."""
    given: Given = case.given
    shape = len(given.keep), WIDTH
    square = WIDTH, WIDTH
    none = torch.eye(WIDTH).double(), torch.zeros(square).double()
    some = evidence.whole_numbers(3, *square), evidence.whole_numbers(4, *square)
    m, b = some if given.followed else none
    return {
        "k": evidence.whole_numbers(1, *shape) / 4,
        "v": evidence.whole_numbers(2, *shape),
        "keep": torch.tensor(given.keep).double(),
        "write": torch.tensor(given.write).double(),
        "m": m,
        "b": b,
    }


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Composed:
    """Call the function with the tokens."""
    given = arguments(case)
    *tokens, m, b = given.values()
    result = function(*tokens, (m, b))
    changed = evidence.changed(arguments(case), given)
    try:
        m, b = result
        return Composed([m.detach().clone(), b.detach().clone()], changed)
    except (TypeError, ValueError, AttributeError):
        return Composed(describe(result), changed)


def after(state: Tensor, case: Case) -> Tensor:
    """Change a state, [e, e], token by token, and as those that follow do."""
    *tokens, m, b = arguments(case).values()
    for k, v, keep, write in zip(*tokens, strict=True):
        state = keep * state
        state = state + write * torch.outer(k, v - k @ state)
    return m @ state + b


def right(case: Case) -> tuple[Tensor, Tensor]:
    """Find m and b by what becomes of an empty state, and of one with a 1 in each row."""
    one = torch.eye(WIDTH).double()
    b = after(torch.zeros_like(one), case)
    return after(one, case) - b, b


def returns(place: int, name: str) -> Judge:
    """Compare one of the two results with what the tokens do to states."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        (seen,) = observed
        if isinstance(seen.got, str):
            return Finding(_given(case), PAIR, seen.got)
        expected, got = right(case)[place], seen.got[place]
        at = evidence.first_difference(expected, got)
        if at is None:
            return None
        shown = evidence.show_got(got, expected, at)
        return Finding(_given(case), f"{name} = {evidence.show(expected, at)}", f"{name} = {shown}")

    return judge


def _given(case: Case) -> str:
    *tokens, m, b = arguments(case).items()
    shown = [f"{name} = {evidence.show(x)}" for name, x in tokens]
    later = f"later = ({evidence.show(m[1])}, {evidence.show(b[1])})"
    return ", ".join([*shown, later])


def _case(title: str, *given: Any, **more: Any) -> Case:
    return Case(world_size=1, title=title, given=Given(*given, **more))


EXERCISE = Exercise(
    name="context_parallel.compose",
    compare="shardlab.plain.linear_attention.then",
    points=2,
    pure=True,
    cases=[
        _case("one token that keeps all", (1.0,), (0.5,)),
        _case("one token that keeps half", (0.5,), (0.5,)),
        _case("one token that writes all", (0.5,), (1.0,)),
        _case("two tokens", (0.5, 0.25), (0.5, 0.75)),
        _case("no token, and some that follow", (), (), followed=True),
        _case("a new document", (0.5, 0.0, 0.75), (0.5, 1.0, 0.25)),
        _case("two tokens, and some that follow", (0.5, 0.75), (0.5, 1.0), followed=True),
    ],
    attempt=attempt,
    properties={
        "m is what a state is multiplied by": returns(0, "m"),
        "b is what an empty state becomes": returns(1, "b"),
        "the arguments stay what they were": evidence.leaves_arguments,
    },
)
