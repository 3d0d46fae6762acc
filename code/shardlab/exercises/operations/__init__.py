"""The exercises on runs that start, survive and resume: operations.<file> names each."""

from . import commit, interval, stream, survivors

EXERCISES = (interval.EXERCISE, stream.EXERCISE, commit.EXERCISE, survivors.EXERCISE)
