"""Data parallelism: every rank holds the whole model, sees its own samples, and averages gradients.

`plain.data_parallel` is the method in one short file: read it first. Here, in this order:
`averaging` averages a tensor, or all weights of a model; `buckets` and `engine` average gradients
while backward still computes; `sampler` deals samples to ranks; and `replica` gives a whole model
the same functions as `zero` gives a sharded one.
"""

from .engine import DataParallel

__all__ = ["DataParallel"]
