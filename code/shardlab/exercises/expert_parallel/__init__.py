"""The exercises on expert parallelism, in the order of its page: expert_parallel.<file>."""

from . import average, balance, combine, dispatch, route, spare

EXERCISES = (
    route.EXERCISE,
    dispatch.EXERCISE,
    combine.EXERCISE,
    average.EXERCISE,
    balance.EXERCISE,
    spare.EXERCISE,
)
