"""The exercises on pipeline parallelism, easiest first: pipeline.<file> names each."""

from . import bubble, cut, eager

EXERCISES = (bubble.EXERCISE, eager.EXERCISE, cut.EXERCISE)
