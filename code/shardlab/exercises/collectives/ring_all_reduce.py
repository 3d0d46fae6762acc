"""Exercise: the ring all-reduce, for any length."""

from math import ceil

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import attempt, moves_at_most, only_messages, returns, takes_at_most
from ..shared.steps import SEND

STARTER = '''\
from shardlab import comm

def my_ring_all_reduce(x, group):
    """Return the sum of all x: by a reduce-scatter, then an all-gather."""
    rank, n = group.rank(), group.size()
    flat = x.flatten()  # its length need not be a multiple of n
    ...
    return x.clone()
'''

EXERCISE = Exercise(
    name="collectives.ring_all_reduce",
    prompt=(
        "Sum a tensor of any length over the ranks around a ring, with messages to one rank at a "
        "time: 2(n-1) steps, 2(n-1)/n of the tensor sent."
    ),
    starter=STARTER,
    hints=(
        (
            "You have half of the algorithm: what does every rank hold after the reduce-scatter, "
            "and what does it lack? And what if n does not divide the length?"
        ),
        (
            "After the reduce-scatter each piece is complete on one rank. The complete pieces "
            "travel round the same ring until every rank has them all; zeros at the end make the "
            "pieces equal."
        ),
        (
            "First the reduce-scatter. Then finished pieces go round: in step s (from 0), rank r "
            "sends piece r - s. torch.nn.functional.pad(flat, (0, -len(flat) % n)) makes equal "
            "pieces possible; cut the zeros off at the end."
        ),
    ),
    compare="shardlab.exchanges.ring_all_reduce",
    points=4,
    cases=[
        Case(world_size=1, title="3 numbers", given=(3,)),
        Case(world_size=2, title="2 numbers", given=(2,)),
        Case(world_size=2, title="3 numbers", given=(3,)),
        Case(world_size=3, title="3 numbers", given=(3,)),
        Case(world_size=3, title="a matrix of 7 rows", given=(7, 1)),
        Case(world_size=4, title="2 numbers", given=(2,)),
        Case(world_size=4, title="10 numbers", given=(10,)),
        Case(world_size=4, title="4 numbers", given=(4,), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has the sum": returns(lambda inputs, place: torch.stack(inputs).sum(dim=0)),
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
