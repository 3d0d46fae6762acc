"""The exercises on data parallelism, easiest first: data_parallel.<file> names each."""

from . import average_gradients, average_gradients_fused, shard, step_with_accumulation

EXERCISES = (
    shard.EXERCISE,
    average_gradients.EXERCISE,
    average_gradients_fused.EXERCISE,
    step_with_accumulation.EXERCISE,
)
