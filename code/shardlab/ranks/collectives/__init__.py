"""Collectives made from messages between two ranks; the algorithm is a plan of `shardlab.exchanges`.

Read `exchanges` first, which executes a plan, then `verbs`, one function a collective. `fusion` lets many tensors
travel in one message.
"""

from .verbs import Planner, agree, all_gather, all_reduce, all_to_all, barrier, broadcast, reduce, reduce_scatter

__all__ = [
    "Planner",
    "agree",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
]
