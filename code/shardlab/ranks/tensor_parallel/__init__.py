"""Tensor parallelism: every rank holds a part of each layer and computes a part of every token.

Read `conjugates` first, then `linear`, the two ways to cut a matrix. `vocabulary` cuts embedding
and loss; `sequence` and `regather` cut what lies between the matrices. `engine` cuts a whole model
with `shards`, and `gradients` sums what several ranks hold; `state` reads and fills the cut model.
`by_hand` is what came before tensor parallelism.
"""

from .engine import parallelize
from .gradients import gradient_norm
from .linear import column_linear, row_linear
from .state import gather, load

__all__ = ["column_linear", "gather", "gradient_norm", "load", "parallelize", "row_linear"]
