"""Exercise: the ring all-reduce, for any length."""

from math import ceil

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import comparison, moves_at_most, only_messages, takes_at_most
from ..shared.steps import SEND

TENSORS = comparison(lambda inputs, place: torch.stack(inputs).sum(dim=0))

EXERCISE = Exercise(
    name="collectives.ring_all_reduce",
    compare="shardlab.exchanges.ring_all_reduce",
    points=4,
    cases=[
        Case(world_size=1, title="3 numbers", given=(3,)),
        Case(world_size=2, title="2 numbers", given=(2,)),
        Case(world_size=2, title="3 numbers", given=(3,)),
        Case(world_size=3, title="3 numbers", given=(3,)),
        Case(world_size=3, title="a transposed matrix of 7 rows", given=(7, 2)),
        Case(world_size=4, title="2 numbers", given=(2,)),
        Case(world_size=4, title="10 numbers", given=(10,)),
        Case(world_size=4, title="4 numbers", given=(4,), group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the sum": TENSORS.has("output"),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank sends more than 2(n-1) pieces of 1/n": moves_at_most(
            SEND,
            lambda length, ranks: 2 * (ranks - 1) * ceil(length / ranks),
            "2(n-1) pieces of 1/n, rounded up",
        ),
        "it takes 2(n-1) steps": takes_at_most(lambda ranks: 2 * (ranks - 1), "2(n-1)"),
    },
)
