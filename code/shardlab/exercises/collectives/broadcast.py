"""Exercise: a broadcast down a tree, in as few steps as possible."""

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import (
    comparison,
    log2,
    moves_at_most,
    only_messages,
    takes_at_most,
)
from ..shared.steps import RECEIVE

TENSORS = comparison(lambda inputs, place: inputs[0])

EXERCISE = Exercise(
    name="collectives.broadcast",
    compare="shardlab.exchanges.binomial_broadcast",
    points=2,
    cases=[
        Case(world_size=1, title="2 numbers", given=(2,)),
        Case(world_size=2, title="2 numbers", given=(2,)),
        Case(world_size=3, title="a matrix", given=(2, 3)),
        Case(world_size=4, title="2 numbers", given=(2,)),
        Case(world_size=4, title="2 numbers", given=(2,), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has rank 0's tensor": TENSORS.has("output"),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "it takes ceil(log2(n)) steps": takes_at_most(log2, "ceil(log2(n))"),
        "no rank receives more than one tensor": moves_at_most(
            RECEIVE, lambda length, ranks: length, "one tensor"
        ),
    },
)
