"""Data parallelism: every rank holds the whole model, sees other samples, and averages gradients.

`averaging` is the method in two lines. `buckets` and `engine` send while backward computes. `sampler` deals the samples
to the ranks, and `replica` is a whole model under the verbs of `zero`. Read them in this order.
"""

from .engine import DataParallel

__all__ = ["DataParallel"]
