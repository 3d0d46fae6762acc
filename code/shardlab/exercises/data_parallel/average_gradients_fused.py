"""Exercise: the same means in one message, because every message has a latency of its own."""

from .. import evidence
from ..checker import Exercise
from . import average_gradients

EXERCISE = Exercise(
    name="data_parallel.average_gradients_fused",
    compare="shardlab.ranks.collectives.fusion.all_reduce_fused",
    points=3,
    cases=average_gradients.CASES,
    attempt=average_gradients.attempt,
    properties={
        **average_gradients.EXERCISE.properties,
        "a rank sends one message": evidence.sends_messages(1),
    },
)
