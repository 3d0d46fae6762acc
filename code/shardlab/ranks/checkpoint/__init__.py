"""Checkpoints that any layout can read, and that run no code when they are read.

Read `boxes` first, which says what a rank holds of the whole model; then `tensors`, a file of such
boxes, and `index`, which says where each box is; then `saving` and `loading`, and `background`,
which saves while training goes on. `neighbour` keeps copies in the memory of two nodes, `folders`
keeps checkpoints complete, `together` lets ranks fail together, and `extras` are random states and
the options of optimizers. `hugging_face` reads the checkpoints that others publish.
"""

from . import neighbour
from .background import Background, Stall
from .loading import check, contents, latest, load, weights
from .saving import save

__all__ = [
    "Background",
    "Stall",
    "check",
    "contents",
    "latest",
    "load",
    "neighbour",
    "save",
    "weights",
]
