"""Exercise: a linear layer cut by its outputs."""

from ..checker import Exercise
from ..shared import layers, passes

LAYER = layers.Linear(inputs=3, outputs=12, dims={"x": None, "weight": 0, "bias": 0, "output": -1})

STARTER = '''\
from torch.nn import functional as F
from shardlab.ranks.tensor_parallel.conjugates import CopyToRanks, SumOverRanks

def my_column_linear(x, weight, bias, group):
    """This rank's outputs of a linear layer: [..., D] -> [..., F / ranks].

    x is whole on every rank; weight and bias are its rows, as torch stores them.
    """
    return F.linear(x, weight, bias)  # forward is right; but what does x get back?
'''

EXERCISE = Exercise(
    name="tensor_parallel.column_linear",
    prompt="Compute this rank's outputs of a linear layer, so that x gets its whole gradient.",
    starter=STARTER,
    hint=(
        "Every rank uses the same x for other outputs, so each has only a part of its gradient. Which of the two "
        "functions sums in backward? Use it with .apply(tensor, group)."
    ),
    points=2,
    cases=layers.CASES,
    attempt=LAYER.attempt,
    properties={
        "a rank has its own outputs": passes.has(("output",), LAYER.reference, LAYER.told),
        "its weight and bias get their gradients": passes.has(
            ("weight.grad", "bias.grad"), LAYER.reference, LAYER.told
        ),
        "x gets the gradient of the uncut layer": passes.has(("x.grad",), LAYER.reference, LAYER.told),
        "inputs and incoming gradients stay what they were": passes.leave_inputs,
        "forward sends nothing, backward one all-reduce of x": passes.sends(
            lambda case: 0, lambda case: LAYER.whole(case)["x"].nbytes
        ),
    },
)
