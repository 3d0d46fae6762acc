"""The exercises on collectives, easiest first: collectives.<file> names each."""

from . import broadcast, doubling_all_reduce, reduce_scatter, ring_all_reduce

EXERCISES = (
    broadcast.EXERCISE,
    doubling_all_reduce.EXERCISE,
    reduce_scatter.EXERCISE,
    ring_all_reduce.EXERCISE,
)
