"""Data parallelism, predicted: one step, and what more ranks gain.

Read `overlap` first, which hides messages behind backward, then `run`, a whole step, and `scaling`,
many steps. `machines` has networks and examples to try.
"""

from .run import DataParallelRun, DataParallelStep, events, step, training

__all__ = ["DataParallelRun", "DataParallelStep", "events", "step", "training"]
