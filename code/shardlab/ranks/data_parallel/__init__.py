"""Data parallelism: every rank holds the whole model, sees its own samples, and averages gradients.

Read in this order. `averaging` is the method in two lines, `buckets` and `engine` average while
backward still computes, `sampler` deals samples to ranks, and `replica` gives a whole model the
same functions as `zero` gives a sharded one.
"""

from .engine import DataParallel

__all__ = ["DataParallel"]
