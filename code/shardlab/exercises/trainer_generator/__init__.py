"""The exercises on a trainer and a generator, in the page's order."""

from . import commit, decode, place, plan

EXERCISES = (plan.EXERCISE, decode.EXERCISE, place.EXERCISE, commit.EXERCISE)
