"""The exercises on context parallelism, in the page's order: context_parallel.<file> names each."""

from . import compose, exchange_heads, merge, place, ring_backward, ring_forward, scan

EXERCISES = (
    merge.EXERCISE,
    place.EXERCISE,
    ring_forward.EXERCISE,
    ring_backward.EXERCISE,
    exchange_heads.EXERCISE,
    compose.EXERCISE,
    scan.EXERCISE,
)
