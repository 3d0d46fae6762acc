"""The exercises on ZeRO, easiest first: zero.<file> is the name of each."""

from . import clip, gathered_linear, pieces, step

EXERCISES = (pieces.EXERCISE, step.EXERCISE, clip.EXERCISE, gathered_linear.EXERCISE)
