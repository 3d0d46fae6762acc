"""ZeRO, predicted: `sharding` counts what each stage sends and holds; `costs.step` times it."""

from .sharding import (
    WHOLE_AT_A_TIME,
    buffers,
    padded,
    padding,
    ratio,
    sent_bytes,
    states,
    whole_for_a_moment,
)

__all__ = [
    "WHOLE_AT_A_TIME",
    "buffers",
    "padded",
    "padding",
    "ratio",
    "sent_bytes",
    "states",
    "whole_for_a_moment",
]
