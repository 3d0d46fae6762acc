"""Collectives as plans: which rank sends which pieces to which rank in every step, as plain data.

    plan = ring_all_reduce(4)
    plan.steps[0]                        # [Move(source=0, to=1, pieces=range(3, 4), ...), ...]
    contents(plan, everyones(plan))[-1]  # [rank][piece] -> whose numbers it holds at the end

`ranks.collectives` executes a plan, `costs.collectives` counts it, `figures.exchanges` draws it.
"""

from .all_to_all import pairwise_all_to_all
from .doubling import (
    doubling_all_gather,
    halving_doubling_all_reduce,
    halving_reduce_scatter,
    recursive_doubling_all_reduce,
)
from .levels import hierarchical_all_reduce
from .plan import (
    ADD,
    COPY,
    Cell,
    Held,
    Move,
    Plan,
    contents,
    everyones,
    in_words,
    one_piece_each,
    only,
)
from .ring import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    scatter_all_gather_broadcast,
)
from .tree import binomial_all_reduce, binomial_broadcast, binomial_reduce, naive_all_reduce

ALL_REDUCES = {  # those that need nothing but the number of ranks
    "naive": naive_all_reduce,
    "binomial tree": binomial_all_reduce,
    "ring": ring_all_reduce,
    "recursive doubling": recursive_doubling_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
}

__all__ = [
    "ADD",
    "ALL_REDUCES",
    "COPY",
    "Cell",
    "Held",
    "Move",
    "Plan",
    "binomial_all_reduce",
    "binomial_broadcast",
    "binomial_reduce",
    "contents",
    "doubling_all_gather",
    "everyones",
    "halving_doubling_all_reduce",
    "halving_reduce_scatter",
    "hierarchical_all_reduce",
    "in_words",
    "naive_all_reduce",
    "one_piece_each",
    "only",
    "pairwise_all_to_all",
    "recursive_doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter_all_gather_broadcast",
]
