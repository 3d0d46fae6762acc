"""Exercise: layers cut by rows whose outputs are added up, with one sum over ranks for all.

`plain.tensor_parallel.RowLinear` sums after each layer. A block whose attention and MLP run side by
side adds their outputs, and so needs one sum: Chowdhery et al. 2022, section 2,
https://arxiv.org/abs/2204.02311.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise
from ..shared import linears
from ..shared.linears import Given

CUT = {"x": -1, "weight": -1}  # the dims that are cut over ranks


def incoming(case: Case) -> Tensor:
    """Make the gradient of the output, the same on every rank: [..., h]."""
    return evidence.whole_numbers(30, *case.given.vectors, linears.WIDTH)


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Make a rank's part of each input, and its rows of every layer."""
    return linears.cut(linears.rows_whole(case), CUT, case, rank)


def call(function: Any, given: Mapping[str, Tensor], group: Any, case: Case, rank: int) -> Any:
    """Pass layers, group, and the input of each layer."""
    xs = [x for name, x in given.items() if name.startswith("x")]
    return function(linears.make(given), group, xs)


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute output and gradients of the uncut layers, and take a rank's pieces."""
    whole = {name: x.requires_grad_() for name, x in linears.rows_whole(case).items()}
    numbers = range(len(case.given.widths))
    y = sum((linears.apply(whole, n, whole[f"x {n}"]) for n in numbers), incoming(case) * 0)
    found = linears.gradients(whole, [y], [incoming(case)])
    return {"output": y.detach(), **linears.cut(found, CUT, case, rank)}


def given(case: Case) -> str:
    """Describe the case's input."""
    tensors = linears.rows_whole(case)
    biases = [evidence.show(x) for name, x in tensors.items() if name.startswith("bias")]
    shown = f", biases {', '.join(biases)}" if biases else ""
    return f"{linears.describe(case, 'inputs')}{shown}"


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    incoming=lambda case, rank: {"output": incoming(case)},
    call=call,
    given=given,
)
EXERCISE = Exercise(
    name="tensor_parallel.rows",
    compare="shardlab.plain.tensor_parallel.RowLinear",
    points=2,
    cases=[
        Case(world_size=1, title="one vector", given=Given((12,))),
        Case(world_size=2, title="one vector", given=Given((12,))),
        Case(world_size=2, title="no bias", given=Given((12,), biases=(False,))),
        Case(world_size=3, title="attention and MLP, two vectors", given=Given((12, 24), (2,))),
        Case(
            world_size=4,
            title="attention and MLP, a bias in one, two sequences of two tokens",
            given=Given((12, 24), (2, 2), (False, True)),
        ),
        Case(world_size=4, title="attention and MLP", given=Given((12, 24), (2,)), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the output of the uncut layers": TENSORS.has("output"),
        "inputs, weights and biases get their gradients": TENSORS.has("x", "weight", "bias"),
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "forward sends one all-reduce of the output, backward nothing": tensors.sends(
            lambda case: incoming(case).nbytes, lambda case: 0
        ),
    },
)
