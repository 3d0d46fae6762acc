"""The exercises on tensor parallelism, easiest first: tensor_parallel.<file> is the name of each."""

from . import column_linear, copy_to_ranks, row_linear, vocab_parallel_cross_entropy

EXERCISES = (
    copy_to_ranks.EXERCISE,
    column_linear.EXERCISE,
    row_linear.EXERCISE,
    vocab_parallel_cross_entropy.EXERCISE,
)
