"""Exercise: a reduce-scatter around a ring, without a byte too many."""

import torch

from ..checker import Case, Exercise
from ..evidence import leaves_arguments
from ..shared.messages import attempt, moves_at_most, only_messages, returns
from ..shared.steps import SEND

STARTER = '''\
from shardlab import comm

def my_reduce_scatter(x, group):
    """Sum x over ranks, and return rows rank*k to (rank+1)*k of its n*k rows."""
    rank, n = group.rank(), group.size()
    pieces = list(x.clone().chunk(n))  # piece i ends on rank i
    for step in range(1, n):
        ...  # comm.exchange(piece, group, to=next_rank, source=rank_before)
    return pieces[rank]
'''

EXERCISE = Exercise(
    name="collectives.reduce_scatter",
    prompt=(
        "Give every rank the sum of its own rows only, with messages to one rank at a time, and "
        "let it send (n-1)/n of its tensor, not more."
    ),
    starter=STARTER,
    hints=(
        (
            "Draw three ranks with three pieces each. Where must a piece start if it ends on its "
            "owner and passes every rank once?"
        ),
        (
            "A piece travels round the ring and grows: every rank that it passes adds its own "
            "rows. All ranks send in every step, each a different piece."
        ),
        (
            "A piece starts on the rank after its owner, and every rank that it passes adds its "
            "own. So in step s, rank r sends piece r - s to rank r + 1, and adds what it receives "
            "to its piece r - s - 1, all modulo n."
        ),
    ),
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
    attempt=attempt,
    properties={
        "every rank has the sum of its own rows": returns(
            lambda inputs, place: torch.stack(inputs).sum(dim=0).chunk(len(inputs))[place]
        ),
        "the input stays what it was": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank sends more than (n-1)/n of its tensor": moves_at_most(
            SEND, lambda length, ranks: (ranks - 1) / ranks * length, "(n-1)/n of its tensor"
        ),
    },
)
