"""Collectives, predicted: messages, bytes and seconds of every algorithm.

Read `algorithms` first, the closed forms, then `bandwidth`, what benchmarks print. `exchanges`
counts the messages of any plan instead, `bounds` computes what no algorithm can beat, `library`
which algorithm and protocol NCCL takes and how long a collective takes alone in a node, and
`fabric` what the switches behind the cards leave of their rate.
"""

from .algorithms import (
    ALL_REDUCES,
    Cost,
    all_gather,
    all_reduce_seconds,
    all_to_all,
    at_once,
    binomial_all_reduce,
    halving_doubling_all_reduce,
    naive_all_reduce,
    recursive_doubling_all_reduce,
    reduce_scatter,
    ring_all_reduce,
    switch_share,
    two_tree_all_reduce,
)
from .bandwidth import BUS_FACTORS, algorithm_bandwidth, bus_bandwidth

__all__ = [
    "ALL_REDUCES",
    "BUS_FACTORS",
    "Cost",
    "algorithm_bandwidth",
    "all_gather",
    "all_reduce_seconds",
    "all_to_all",
    "at_once",
    "binomial_all_reduce",
    "bus_bandwidth",
    "halving_doubling_all_reduce",
    "naive_all_reduce",
    "recursive_doubling_all_reduce",
    "reduce_scatter",
    "ring_all_reduce",
    "switch_share",
    "two_tree_all_reduce",
]
