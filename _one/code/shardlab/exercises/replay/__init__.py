"""The exercise on record and replay: replay.<file> names it."""

from . import fair_rates

EXERCISES = (fair_rates.EXERCISE,)
