"""Exercise: the same averages in one message, because every message has a latency of its own."""

from .. import evidence
from ..checker import Exercise
from . import average_gradients

STARTER = '''\
import torch
from shardlab.ranks import comm

def my_average_gradients_fused(model, group):
    """The same in one message: flatten all, average, and take apart again."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    ...
'''

EXERCISE = Exercise(
    name="data_parallel.average_gradients_fused",
    prompt="Average the gradients as before, but send them all in one message.",
    starter=STARTER,
    hint="flat.split([g.numel() for g in gradients]) takes it apart; view_as gives each part its gradient's shape.",
    points=3,
    cases=average_gradients.CASES,
    attempt=average_gradients.attempt,
    properties={**average_gradients.EXERCISE.properties, "a rank sends one message": evidence.sends_one_message},
)
