"""Exercise: the affine map of a run of tokens, and one map of two.

`plain.linear_attention.attend` follows all heads at once; here it is one. Gated delta rule: Yang
et al. 2024, https://arxiv.org/abs/2412.06464
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise

WIDTH = 2  # e


@dataclass(frozen=True)
class Given:
    """The gates of each token, and whether tokens follow that change the state."""

    keep: Sequence[float]
    write: Sequence[float]
    followed: bool = False


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
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


def after(state: Tensor, case: Case) -> Tensor:
    """Change a state, [e, e], token by token, and as those that follow do."""
    *tokens, m, b = inputs(case, 0).values()
    for k, v, keep, write in zip(*tokens, strict=True):
        state = keep * state
        state = state + write * torch.outer(k, v - k @ state)
    return m @ state + b


def reference(case: Case, rank: int) -> evidence.Named:
    """Find m and b by what becomes of an empty state, and of one with a 1 in each row."""
    one = torch.eye(WIDTH).double()
    b = after(torch.zeros_like(one), case)
    return {"m": after(one, case) - b, "b": b}


def _given(case: Case) -> str:
    *tokens, m, b = inputs(case, 0).items()
    shown = [f"{name} = {evidence.show(x)}" for name, x in tokens]
    later = f"later = ({evidence.show(m[1])}, {evidence.show(b[1])})"
    return ", ".join([*shown, later])


def _case(title: str, *given: Any, **more: Any) -> Case:
    return Case(world_size=1, title=title, given=Given(*given, **more))


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    outputs=("m", "b"),
    call=lambda function, x, *_: function(x["k"], x["v"], x["keep"], x["write"], (x["m"], x["b"])),
    given=_given,
    pure=True,
)
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
    attempt=TENSORS.attempt,
    properties={
        "m is what a state is multiplied by": TENSORS.has("m"),
        "b is what an empty state becomes": TENSORS.has("b"),
        "the arguments stay what they were": evidence.leaves_arguments,
    },
)
