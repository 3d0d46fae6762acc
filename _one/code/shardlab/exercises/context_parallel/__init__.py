"""The exercises on context parallelism, easiest first: context_parallel.<file> names each."""

from . import exchange_heads, merge, place, ring_backward, ring_forward

EXERCISES = (
    merge.EXERCISE,
    place.EXERCISE,
    ring_forward.EXERCISE,
    ring_backward.EXERCISE,
    exchange_heads.EXERCISE,
)
