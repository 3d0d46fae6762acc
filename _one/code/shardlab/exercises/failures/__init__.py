"""The exercises of the failure lab, easiest first: failures.<file> names each."""

from . import first_nan_rank, save, straggler

EXERCISES = (straggler.EXERCISE, first_nan_rank.EXERCISE, save.EXERCISE)
