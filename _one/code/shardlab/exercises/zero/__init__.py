"""The exercises on ZeRO, easiest first: zero.<file> names each."""

from . import clip, gathered_linear, pieces, step

EXERCISES = (pieces.EXERCISE, step.EXERCISE, clip.EXERCISE, gathered_linear.EXERCISE)
