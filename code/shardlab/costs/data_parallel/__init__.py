"""Data parallelism, predicted: one step, and what more ranks buy.

Read `overlap` first, which hides messages behind backward, then `run`, a whole step, and `scaling`, many of them.
`machines` has networks and examples to try.
"""

from .run import Run, Step, events, step, training

__all__ = ["Run", "Step", "events", "step", "training"]
