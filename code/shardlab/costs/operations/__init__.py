"""Runs that fail, predicted: how often to save, what is lost, and what a file system must take.

`interval` has the formulas, `chance` plays the same run with failures at random times.
"""

from .chance import KINDS, Stretch, play, shares
from .interval import Losses, Reliability, between_failures, write_rate

__all__ = [
    "KINDS",
    "Losses",
    "Reliability",
    "Stretch",
    "between_failures",
    "play",
    "shares",
    "write_rate",
]
