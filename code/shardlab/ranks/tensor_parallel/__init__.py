"""Tensor parallelism: every rank holds a part of each layer, and all ranks compute every token together.

Read `conjugates` first, then `linear`: the two cuts of a matrix. `vocabulary` cuts embedding and loss, `sequence` and
`regather` what lies between the cut matrices. `engine` cuts a whole model with `shards`, and calls `gradients` for what
several ranks hold; `state` reads and fills the cut model. `dropout` is right however its input is cut, and `by_hand` is
what came before tensor parallelism.
"""

from .engine import parallelize
from .gradients import gradient_norm
from .linear import column_linear, row_linear
from .state import gather, load

__all__ = ["column_linear", "gather", "gradient_norm", "load", "parallelize", "row_linear"]
