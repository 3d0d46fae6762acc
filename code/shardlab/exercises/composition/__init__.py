"""The exercises on composing methods, easiest first: composition.<file> names each."""

from . import byte_ranges, duties, gradient_norm, groups, repair

EXERCISES = (
    groups.EXERCISE,
    duties.EXERCISE,
    byte_ranges.EXERCISE,
    repair.EXERCISE,
    gradient_norm.EXERCISE,
)
