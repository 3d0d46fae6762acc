"""Exercise: an all-reduce for short tensors, in log2(n) steps."""

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import attempt, log2, only_messages, returns, takes_at_most

STARTER = '''\
from shardlab import comm

def my_doubling_all_reduce(x, group):
    """Return the sum of all x, in log2(n) steps; n is a power of two."""
    rank, n = group.rank(), group.size()
    total = x.clone()
    ...  # rank ^ 1 is the neighbour, rank ^ 2 the partner at distance 2
    return total
'''

EXERCISE = Exercise(
    name="collectives.doubling_all_reduce",
    prompt=(
        "Sum a short tensor over 2 or 4 ranks (or 8, or 16) in log2(n) steps, with messages to one "
        "rank at a time, however many bytes that takes."
    ),
    starter=STARTER,
    hints=(
        (
            "After one swap your total covers two ranks. With whom do you swap next so that it "
            "covers four, and counts none of them twice?"
        ),
        (
            "The distance between partners doubles in each step, so that each partner has the sum "
            "of ranks that the other lacks."
        ),
        (
            "In the step of distance d = 1, 2, 4 ... swap your total with rank ^ d, and add what "
            "you receive."
        ),
    ),
    compare="shardlab.exchanges.recursive_doubling_all_reduce",
    points=2,
    cases=[
        Case(world_size=1, title="3 numbers", given=(3,)),
        Case(world_size=2, title="3 numbers", given=(3,)),
        Case(world_size=4, title="3 numbers", given=(3,)),
        Case(world_size=4, title="1 number", given=(1,), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has the sum": returns(lambda inputs, place: torch.stack(inputs).sum(dim=0)),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "it takes log2(n) steps": takes_at_most(log2, "log2(n)"),
    },
)
