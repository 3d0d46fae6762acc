"""Tensor parallelism: every rank holds a part of each layer and computes a part of every token.

Read `conjugates` first, then `linear`, the two ways to cut a matrix. `vocabulary` cuts embedding
and loss; `sequence` and `regather` cut what lies between the matrices. `engine` cuts a whole model
with `shards`, and `gradients` sums what several ranks hold.
"""

from .engine import parallelize
from .gradients import gradient_norm
from .linear import column_linear, row_linear

__all__ = ["column_linear", "gradient_norm", "parallelize", "row_linear"]
