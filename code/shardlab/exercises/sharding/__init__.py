"""The exercises on sharding as types, easiest first: sharding.<file> names each."""

from . import cheapest, missing_sum, moves, reducer, states

EXERCISES = (
    states.EXERCISE,
    moves.EXERCISE,
    missing_sum.EXERCISE,
    cheapest.EXERCISE,
    reducer.EXERCISE,
)
