"""Checkpoints that any layout can read.

Read `boxes` first, which says what a rank holds of the whole model, then `files`,
and `folders`, which keeps checkpoints complete.
"""

from .files import check, contents, load, save, weights
from .folders import latest

__all__ = ["check", "contents", "latest", "load", "save", "weights"]
