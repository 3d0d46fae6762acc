"""The exercises on tensor parallelism, easiest first: tensor_parallel.<file> names each."""

from . import columns, gather_from_ranks, rows, smoothed_loss

EXERCISES = (
    gather_from_ranks.EXERCISE,
    columns.EXERCISE,
    rows.EXERCISE,
    smoothed_loss.EXERCISE,
)
