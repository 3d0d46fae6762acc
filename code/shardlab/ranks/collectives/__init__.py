"""Collectives made of point-to-point messages; the algorithm is a plan of `shardlab.exchanges`.

Read `exchanges` first, which executes a plan, then `verbs`, with one function per collective.
`fusion` sends many tensors in one message.
"""

from .verbs import (
    Planner,
    agree,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)

__all__ = [
    "Planner",
    "agree",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "reduce_scatter",
]
