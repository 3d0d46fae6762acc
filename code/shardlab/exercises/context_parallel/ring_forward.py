"""Exercise: the forward of ring attention, with one step less than `plain.ring_attention`.

The plain file sends every block home in its last turn, so that backward can begin with it.
"""

from ..checker import Exercise
from ..evidence import leaves_arguments
from ..shared import rings
from ..shared.messages import only_messages

TENSORS = rings.comparison("q k v", "y lse")

EXERCISE = Exercise(
    name="context_parallel.ring_forward",
    compare="shardlab.plain.ring_attention.Ring.forward",
    points=3,
    cases=rings.CASES,
    attempt=TENSORS.attempt,
    properties={
        "every rank has the lse of all keys": TENSORS.has("lse"),
        "every rank has the output of all keys": TENSORS.has("y"),
        "the arguments stay what they were": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank has all keys, or the scores of all": rings.never_has_all_keys,
        "keys and values take n - 1 steps": rings.sends(
            lambda ranks: 2 * (ranks - 1), "n - 1 steps of keys and values"
        ),
    },
)
