"""The exercises on pipeline parallelism, easiest first: pipeline.<file> is the name of each."""

from . import bubble, cut, one_f_one_b

EXERCISES = (bubble.EXERCISE, one_f_one_b.EXERCISE, cut.EXERCISE)
