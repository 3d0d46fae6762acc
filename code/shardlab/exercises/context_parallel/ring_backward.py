"""Exercise: the backward of ring attention, a second turn of the ring with gradients behind keys.

`plain.ring_attention` lets a gradient travel from the first turn on, n steps. Here it begins on the
next rank, as in the engine, and needs n - 1.
"""

from ..checker import Exercise
from ..evidence import leaves_arguments
from ..shared import rings
from ..shared.messages import only_messages

STARTER = '''\
import torch
from shardlab import comm

def my_ring_backward(dy, q, k, v, y, lse, mask, group):
    """Return dq, dk and dv of this rank's tokens, all [H, c, e].

    dy: the gradient of y; y, lse: what forward returned. With p = exp(scores - lse)
    dv is p.mT @ dy, and with ds = p * (dy @ v.mT - sum of dy * y over e) / e ** 0.5
    dq is ds @ k, dk is ds.mT @ q. Keys and values take n - 1 steps, gradients too.
    """
    seen = mask.chunk(group.size(), dim=1)[group.rank()]
    p = (q @ k.mT / q.shape[-1] ** 0.5 - lse).masked_fill(~seen, -torch.inf).exp()
    ds = p * (dy @ v.mT - (dy * y).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ dy  # of own keys and own queries only: fix it
'''

EXERCISE = Exercise(
    name="context_parallel.ring_backward",
    prompt=(
        "Compute the gradients of ring attention: keys and values travel once more, their "
        "gradients behind them, n - 1 steps each."
    ),
    starter=STARTER,
    hints=(
        (
            "A rank computes gradients of keys that belong to other ranks. How does such a "
            "gradient come home, and what should the ranks on its way do?"
        ),
        (
            "The gradient of a block follows the block round the ring, and every rank that it "
            "passes adds its own part."
        ),
        (
            "In every turn add to dq, and compute the gradient of the block at hand. In turn 0 it "
            "is your own: keep it. In turn 1 it starts to travel to the next rank; from turn 2 on "
            "add what has arrived before you pass it on. After the last turn it needs one more "
            "step, and is home."
        ),
    ),
    compare="shardlab.plain.ring_attention.Ring.backward",
    points=4,
    cases=rings.CASES,
    attempt=rings.attempt("dy q k v y lse", "dq dk dv"),
    properties={
        "queries get the gradient of all keys": rings.has("dq"),
        "keys get the gradient of all queries": rings.has("dk"),
        "values get the gradient of all queries": rings.has("dv"),
        "the arguments stay what they were": leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "no rank has all keys, or the scores of all": rings.never_has_all_keys,
        "blocks and gradients take n - 1 steps": rings.sends(
            lambda ranks: 4 * (ranks - 1), "n - 1 steps of keys, values and their gradients"
        ),
    },
)
