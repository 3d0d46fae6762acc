"""Exercise: a broadcast down a tree."""

from ..checker import Case, Exercise
from ..shared.messages import attempt, leave_input, log2, moves_at_most, only_messages, returns, takes_at_most
from ..shared.steps import RECEIVE

STARTER = '''\
from shardlab.ranks import comm

def my_broadcast(x, group):
    """Rank 0's x on every rank, in as few steps as can be."""
    rank, n = group.rank(), group.size()
    if rank == 0:
        for other in range(1, n):
            comm.send(x, group, to=other)  # one after the other: rank 1 could help
        return x.clone()
    return comm.receive(x, group, source=0) * 0  # and this is not what was sent
'''


EXERCISE = Exercise(
    name="collectives.broadcast",
    prompt="Bring rank 0's tensor to every rank in ceil(log2(n)) steps, with messages between two ranks only.",
    starter=STARTER,
    hint=(
        "Count d = 1, 2, 4 ... below n. In each round, every rank below d has x and sends it to the rank d places on, "
        "if there is one. A rank receives once: in the round in which d is its highest power of two."
    ),
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
        "the input stays what it was": leave_input,
        "ranks talk in messages between two of them": only_messages,
        "it takes ceil(log2(n)) steps": takes_at_most(log2, "ceil(log2(n))"),
        "no rank receives more than one tensor": moves_at_most(RECEIVE, lambda numbers, ranks: numbers, "one tensor"),
    },
)
