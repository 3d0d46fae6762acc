"""Exercise: a linear layer cut by its inputs, with its bias counted once."""

from ..checker import Exercise
from ..shared import layers, passes

LAYER = layers.Linear(inputs=12, outputs=3, dims={"x": -1, "weight": -1, "bias": None, "output": None})

STARTER = '''\
from torch.nn import functional as F
from shardlab.ranks.tensor_parallel.conjugates import CopyToRanks, SumOverRanks

def my_row_linear(x, weight, bias, group):
    """All outputs of a linear layer, on every rank: [..., F / ranks] -> [..., D].

    x are this rank's inputs, weight their columns; bias is whole on every rank.
    """
    return F.linear(x, weight, bias)  # of this rank's inputs alone: mend it
'''

EXERCISE = Exercise(
    name="tensor_parallel.row_linear",
    prompt="Compute all outputs of a linear layer from inputs that are spread over the ranks.",
    starter=STARTER,
    hint="Each rank's product is a partial sum. Add the bias when the sum is there, or it counts once for every rank.",
    points=2,
    cases=layers.CASES,
    attempt=LAYER.attempt,
    properties={
        "every rank has the output of the uncut layer": passes.has(("output",), LAYER.reference, LAYER.told),
        "x, weight and bias get their gradients": passes.has(
            ("x.grad", "weight.grad", "bias.grad"), LAYER.reference, LAYER.told
        ),
        "inputs and incoming gradients stay what they were": passes.leave_inputs,
        "forward sends one all-reduce of the output, backward nothing": passes.sends(
            lambda case: LAYER.incoming(case).nbytes, lambda case: 0
        ),
    },
)
