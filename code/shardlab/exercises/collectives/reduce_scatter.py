"""Exercise: a reduce-scatter around a ring, without a byte too many."""

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import comparison, moves_at_most, only_messages
from ..shared.steps import SEND

TENSORS = comparison(lambda inputs, place: torch.stack(inputs).sum(dim=0).chunk(len(inputs))[place])

EXERCISE = Exercise(
    name="collectives.reduce_scatter",
    compare="shardlab.exchanges.ring_reduce_scatter",
    points=3,
    cases=[
        Case(world_size=1, title="2 rows", given=(2,)),
        Case(world_size=2, title="2 rows", given=(2,)),
        Case(world_size=2, title="6 rows of 2 numbers", given=(6, 2)),
        Case(world_size=3, title="3 rows", given=(3,)),
        Case(world_size=4, title="8 rows", given=(8,)),
        Case(world_size=4, title="4 rows", given=(4,), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the sum of its own rows": TENSORS.has("output"),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank sends more than (n-1)/n of its tensor": moves_at_most(
            SEND, lambda length, ranks: (ranks - 1) / ranks * length, "(n-1)/n of its tensor"
        ),
    },
)
