"""What others published: sizes by date, runs, steps and sweeps with their layouts, bandwidths; each with its source."""

from . import a100, bus_bandwidth, h100, history, layouts, runs, steps, studies, sweeps

__all__ = ["a100", "bus_bandwidth", "h100", "history", "layouts", "runs", "steps", "studies", "sweeps"]
