"""The exercises on composing methods, easiest first: composition.<file> names each."""

from . import duties, gradient_norm, groups

EXERCISES = (groups.EXERCISE, duties.EXERCISE, gradient_norm.EXERCISE)
