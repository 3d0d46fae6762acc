"""Collectives, predicted: messages, bytes and seconds of every algorithm.

Read `algorithms` first, the closed forms. `exchanges` counts any plan instead, and `bounds` says what no algorithm can
beat.
"""

from .algorithms import (
    ALL_REDUCES,
    BUS_FACTORS,
    Cost,
    algorithm_bandwidth,
    all_gather,
    all_reduce_seconds,
    all_to_all,
    barrier,
    binomial_all_reduce,
    broadcast,
    bus_bandwidth,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    parameter_server,
    recursive_doubling_all_reduce,
    reduce,
    reduce_scatter,
    ring_all_reduce,
    ring_through_servers,
    scatter_all_gather_broadcast,
    tree_all_reduce,
)

__all__ = [
    "ALL_REDUCES",
    "BUS_FACTORS",
    "Cost",
    "algorithm_bandwidth",
    "all_gather",
    "all_reduce_seconds",
    "all_to_all",
    "barrier",
    "binomial_all_reduce",
    "broadcast",
    "bus_bandwidth",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "parameter_server",
    "recursive_doubling_all_reduce",
    "reduce",
    "reduce_scatter",
    "ring_all_reduce",
    "ring_through_servers",
    "scatter_all_gather_broadcast",
    "tree_all_reduce",
]
