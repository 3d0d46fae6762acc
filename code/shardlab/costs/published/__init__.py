"""What others published: models' sizes by date, runs, steps and sweeps of layouts, bandwidths.

Every entry names its source.
"""

from . import a100, bus_bandwidth, h100, history, layouts, runs, steps, studies, sweeps

__all__ = [
    "a100",
    "bus_bandwidth",
    "h100",
    "history",
    "layouts",
    "runs",
    "steps",
    "studies",
    "sweeps",
]
