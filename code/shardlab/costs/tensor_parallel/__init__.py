"""Tensor parallelism, predicted: one layer on several ranks."""

from .layer import (
    TensorParallelLayer,
    communication_ratio,
    layer,
    layer_bytes,
    layers_that_fit,
    most_ranks,
    placement,
    rate,
    sent_bytes,
    spread,
)

__all__ = [
    "TensorParallelLayer",
    "communication_ratio",
    "layer",
    "layer_bytes",
    "layers_that_fit",
    "most_ranks",
    "placement",
    "rate",
    "sent_bytes",
    "spread",
]
