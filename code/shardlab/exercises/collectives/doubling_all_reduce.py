"""Exercise: an all-reduce for short tensors, in log2(n) steps."""

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import comparison, log2, only_messages, takes_at_most

TENSORS = comparison(lambda inputs, place: torch.stack(inputs).sum(dim=0))

EXERCISE = Exercise(
    name="collectives.doubling_all_reduce",
    compare="shardlab.exchanges.recursive_doubling_all_reduce",
    points=2,
    cases=[
        Case(world_size=1, title="3 numbers", given=(3,)),
        Case(world_size=2, title="3 numbers", given=(3,)),
        Case(world_size=2, title="a matrix of 2 x 2", given=(2, 2)),
        Case(world_size=4, title="3 numbers", given=(3,)),
        Case(world_size=4, title="1 number", given=(1,), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the sum": TENSORS.has("output"),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "it takes log2(n) steps": takes_at_most(log2, "log2(n)"),
    },
)
