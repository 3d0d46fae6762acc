"""The exercises on planning, easiest first: planner.<file> names each."""

from . import choose, layouts, step_seconds

EXERCISES = (
    step_seconds.EXERCISE,
    layouts.EXERCISE,
    choose.EXERCISE,
)
