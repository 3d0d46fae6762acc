"""What others published: models' sizes by date, runs, steps and sweeps of layouts, bandwidths, engines.

Every entry names its source.
"""

from . import (
    all_to_all,
    bus_bandwidth,
    engines,
    history,
    mixtures,
    recorded_step,
    recordings,
    runs,
    steps,
    studies,
    sweeps,
)

__all__ = [
    "all_to_all",
    "bus_bandwidth",
    "engines",
    "history",
    "mixtures",
    "recorded_step",
    "recordings",
    "runs",
    "steps",
    "studies",
    "sweeps",
]
