"""The exercises on computing, easiest first: compute.<file> names each."""

from . import attainable, days_to_train, layer_flops

EXERCISES = (
    days_to_train.EXERCISE,
    layer_flops.EXERCISE,
    attainable.EXERCISE,
)
