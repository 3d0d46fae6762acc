"""Exercise: the backward of ring attention, a second turn of the ring with gradients behind keys.

`plain.ring_attention` lets a gradient travel from the first turn on, n steps. Here it begins on the
next rank, as in the engine, and needs n - 1.
"""

from ..checker import Exercise
from ..evidence import leaves_arguments
from ..shared import rings
from ..shared.messages import only_messages

TENSORS = rings.comparison("dy q k v y lse", "dq dk dv")

EXERCISE = Exercise(
    name="context_parallel.ring_backward",
    compare="shardlab.plain.ring_attention.Ring.backward",
    points=4,
    cases=rings.CASES,
    attempt=TENSORS.attempt,
    properties={
        "queries get the gradient of all keys": TENSORS.has("dq"),
        "keys get the gradient of all queries": TENSORS.has("dk"),
        "values get the gradient of all queries": TENSORS.has("dv"),
        "the arguments stay what they were": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank has all keys, or the scores of all": rings.never_has_all_keys,
        "blocks and gradients take n - 1 steps": rings.sends(
            lambda ranks: 4 * (ranks - 1), "n - 1 steps of keys, values and their gradients"
        ),
    },
)
