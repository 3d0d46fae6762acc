"""Exercise: the forward of ring attention, with one step less than `plain.ring_attention`.

The plain file sends every block home in its last turn, so that backward can begin with it.
"""

from ..checker import Exercise
from ..evidence import leaves_arguments
from ..shared import rings
from ..shared.messages import only_messages

STARTER = '''\
import torch
from shardlab import comm

def my_ring_forward(q, k, v, mask, group):
    """Return attention to the keys of all ranks, y [H, c, e], and its lse [H, c, 1].

    q, k, v: [H, c, e], of this rank's tokens. mask: [c, S], true where one of its
    queries sees a key; the keys stand in the order of ranks. Scores are
    q @ k.mT / e ** 0.5, and lse is the log of the sum of exp(scores) over all keys
    that are seen. Keys and values take n - 1 steps, and no rank has them all.
    """
    seen = mask.chunk(group.size(), dim=1)[group.rank()]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse  # of this rank's own keys: fix it
'''

EXERCISE = Exercise(
    name="context_parallel.ring_forward",
    prompt=(
        "Attend to the keys of all ranks while they travel round a ring, in n - 1 steps and never "
        "with all of them on one rank."
    ),
    starter=STARTER,
    hints=(
        (
            "Whose keys does a rank hold after one step, and which columns of its mask belong to "
            "them? What if a query sees none of these keys?"
        ),
        (
            "Each block gives the softmax over its own keys, which merges with what came before as "
            "in the first exercise. The columns of the mask have to follow the block that is at "
            "hand."
        ),
        (
            "Begin with your own block, which every query sees a key of. After t steps a rank has "
            "the block of rank (rank - t) % n, whose columns of the mask belong to it. Merge as in "
            "the first exercise, but take exp(scores - lse) with the merged lse: a block that a "
            "query does not see then counts nothing."
        ),
    ),
    compare="shardlab.plain.ring_attention.Ring.forward",
    points=3,
    cases=rings.CASES,
    attempt=rings.attempt("q k v", "y lse"),
    properties={
        "every rank has the lse of all keys": rings.has("lse"),
        "every rank has the output of all keys": rings.has("y"),
        "the arguments stay what they were": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank has all keys, or the scores of all": rings.never_has_all_keys,
        "keys and values take n - 1 steps": rings.sends(
            lambda ranks: 2 * (ranks - 1), "n - 1 steps of keys and values"
        ),
    },
)
