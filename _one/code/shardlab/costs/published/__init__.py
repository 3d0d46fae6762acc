"""What others published: models' sizes by date, runs, steps and sweeps of layouts, bandwidths.

Every entry names its source.
"""

from . import (
    a100,
    all_to_all,
    bus_bandwidth,
    fits,
    fsdp,
    h100,
    history,
    layouts,
    long_context,
    mixtures,
    products,
    runs,
    steps,
    studies,
    sweeps,
)

__all__ = [
    "a100",
    "all_to_all",
    "bus_bandwidth",
    "fits",
    "fsdp",
    "h100",
    "history",
    "layouts",
    "long_context",
    "mixtures",
    "products",
    "runs",
    "steps",
    "studies",
    "sweeps",
]
