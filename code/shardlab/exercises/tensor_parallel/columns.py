"""Exercise: several layers that read the same x, cut by columns, with one sum in backward.

`plain.tensor_parallel.ColumnLinear` has a gate of its own, and so q, k and v sum three gradients.
"""

from torch import Tensor

from .. import evidence, tensors
from ..checker import Case, Exercise
from ..shared import linears
from ..shared.linears import Given

CUT = {"weight": 0, "bias": 0}  # the dims that are cut over ranks


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Make x, whole, and a rank's columns of every layer."""
    return linears.cut(linears.columns_whole(case), CUT, case, rank)


def incoming(case: Case) -> dict[str, Tensor]:
    """Make the gradients of the whole outputs: [..., f] each."""
    shapes = [(*case.given.vectors, width) for width in case.given.widths]
    drawn = [evidence.whole_numbers(30 + n, *shape) for n, shape in enumerate(shapes)]
    return {f"output {number}": gradient for number, gradient in enumerate(drawn)}


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute outputs and gradients of the uncut layers, and take a rank's pieces."""
    whole = {name: x.requires_grad_() for name, x in linears.columns_whole(case).items()}
    gradient = incoming(case)
    made = [linears.apply(whole, n, whole["x"]) for n in range(len(gradient))]
    found = linears.gradients(whole, made, [*gradient.values()])
    outputs = {name: y.detach() for name, y in zip(gradient, made, strict=True)}
    dims = {"output": -1, **CUT}
    return {**linears.cut({**outputs, **found}, dims, case, rank)}


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=reference,
    incoming=lambda case, rank: linears.cut(incoming(case), {"output": -1}, case, rank),
    call=lambda function, x, group, case, rank: function(linears.make(x), group, x["x"]),
    given=lambda case: linears.describe(case, "outputs"),
)
EXERCISE = Exercise(
    name="tensor_parallel.columns",
    compare="shardlab.ranks.tensor_parallel.parallelize",
    points=2,
    cases=[
        Case(world_size=1, title="one vector", given=Given((12,))),
        Case(world_size=2, title="one vector", given=Given((12,))),
        Case(world_size=2, title="no bias", given=Given((12,), biases=(False,))),
        Case(world_size=3, title="q, k and v, two vectors", given=Given((24, 12, 12), (2,))),
        Case(
            world_size=4,
            title="gate and up, two sequences of two tokens",
            given=Given((12, 12), (2, 2), (False,)),
        ),
        Case(world_size=4, title="q, k and v", given=Given((12, 12, 12), (2,)), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "a rank has its own outputs of every layer": TENSORS.has("output"),
        "weights and biases get their gradients": TENSORS.has("weight", "bias"),
        "x gets the gradient of the uncut layers": TENSORS.has("x.grad"),
        "inputs and incoming gradients stay what they were": evidence.leaves_arguments,
        "forward sends nothing, backward one all-reduce of x": tensors.sends(
            lambda case: 0, lambda case: linears.columns_whole(case)["x"].nbytes
        ),
    },
)
