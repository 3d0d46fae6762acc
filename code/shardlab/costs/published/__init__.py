"""What others published: models' sizes by date, runs, steps and sweeps of layouts, bandwidths.

Every entry names its source.
"""

from . import (
    a100,
    all_to_all,
    bus_bandwidth,
    fsdp,
    h100,
    history,
    layouts,
    long_context,
    mixtures,
    runs,
    steps,
    studies,
    sweeps,
)

__all__ = [
    "a100",
    "all_to_all",
    "bus_bandwidth",
    "fsdp",
    "h100",
    "history",
    "layouts",
    "long_context",
    "mixtures",
    "runs",
    "steps",
    "studies",
    "sweeps",
]
