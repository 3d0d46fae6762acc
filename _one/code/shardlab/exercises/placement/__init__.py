"""The exercise on placing ranks: placement.<file> names it."""

from . import two_levels

EXERCISES = (two_levels.EXERCISE,)
