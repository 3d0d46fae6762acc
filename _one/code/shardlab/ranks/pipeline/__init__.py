"""Pipeline parallelism: every rank holds some layers, and microbatches pass through the ranks.

Read `partition` first, which cuts a model into parts; then `stage`, which computes on them,
`messages`, which carries results between stages, and `engine`, which executes a schedule.
`split_backward` computes the gradients of weights later than those of inputs, and `pipedream`
trains without draining the pipeline.
"""

from .engine import Pipeline

__all__ = ["Pipeline"]
