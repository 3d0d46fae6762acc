"""The exercises on ZeRO, in the page's order: zero.<file> names each."""

from . import clip, gathered_linear, orthogonalize, pieces, step

EXERCISES = (
    pieces.EXERCISE,
    step.EXERCISE,
    clip.EXERCISE,
    gathered_linear.EXERCISE,
    orthogonalize.EXERCISE,
)
