"""Exercise: a broadcast down a tree, in as few steps as possible."""

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import (
    attempt,
    log2,
    moves_at_most,
    only_messages,
    returns,
    takes_at_most,
)
from ..shared.steps import RECEIVE

STARTER = '''\
from shardlab import comm

def my_broadcast(x, group):
    """Return rank 0's x on every rank, in as few steps as possible."""
    rank, n = group.rank(), group.size()
    if rank == 0:
        for other in range(1, n):
            comm.send(x, group, to=other)  # one by one: rank 1 could help
        return x.clone()
    return comm.receive(x, group, source=0) * 0  # wrong: rank 0 did not send zeros
'''


EXERCISE = Exercise(
    name="collectives.broadcast",
    prompt=(
        "Bring rank 0's tensor to every rank in ceil(log2(n)) steps, with messages to one rank at "
        "a time."
    ),
    starter=STARTER,
    hints=(
        (
            "After the first step two ranks have the tensor. What can the second one do in the "
            "next step?"
        ),
        (
            "Every rank that has the tensor can pass it on, so each step can double the number of "
            "ranks that have it."
        ),
        (
            "Let d be 1, 2, 4 ... below n. In each round, every rank below d has x and sends it to "
            "rank + d, if there is one. A rank receives once: in the round in which d is its "
            "highest power of two."
        ),
    ),
    compare="shardlab.exchanges.binomial_broadcast",
    points=2,
    cases=[
        Case(world_size=1, title="2 numbers", given=(2,)),
        Case(world_size=2, title="2 numbers", given=(2,)),
        Case(world_size=3, title="a matrix", given=(2, 3)),
        Case(world_size=4, title="2 numbers", given=(2,)),
        Case(world_size=4, title="2 numbers", given=(2,), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has rank 0's tensor": returns(lambda inputs, place: inputs[0]),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "it takes ceil(log2(n)) steps": takes_at_most(log2, "ceil(log2(n))"),
        "no rank receives more than one tensor": moves_at_most(
            RECEIVE, lambda length, ranks: length, "one tensor"
        ),
    },
)
