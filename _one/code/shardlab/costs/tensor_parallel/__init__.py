"""Tensor parallelism, predicted: one layer on several ranks.

Read `run` first, the closed form. `layer_program` is the same layer as a trace that can be played,
and `by_hand` the alternative without tensor parallelism.
"""

from .run import (
    BETWEEN_BACKWARD,
    BETWEEN_FORWARD,
    TensorParallelLayer,
    TensorParallelRun,
    communication_ratio,
    layer,
    layer_bytes,
    layers_that_fit,
    most_ranks,
    placement,
    sent_bytes,
    spread,
)

__all__ = [
    "BETWEEN_BACKWARD",
    "BETWEEN_FORWARD",
    "TensorParallelLayer",
    "TensorParallelRun",
    "communication_ratio",
    "layer",
    "layer_bytes",
    "layers_that_fit",
    "most_ranks",
    "placement",
    "sent_bytes",
    "spread",
]
