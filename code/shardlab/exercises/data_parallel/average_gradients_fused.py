"""Exercise: the same means in one message, because every message has a latency of its own."""

from .. import evidence
from ..checker import Exercise
from . import average_gradients

STARTER = '''\
import torch
from shardlab import comm

def my_average_gradients_fused(model, group, num_samples):
    """Do the same in one message: join all gradients, sum, and take them apart."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    ...  # one all_reduce; and before it no rank knows its share
'''

EXERCISE = Exercise(
    name="data_parallel.average_gradients_fused",
    prompt=(
        "Average the gradients as before, but in one message: the number of samples travels along."
    ),
    starter=STARTER,
    hints=(
        (
            "Before the only message, no rank knows how many samples there are in all. What can it "
            "send that does not depend on that number?"
        ),
        (
            "A sum can be divided after it has travelled, and the number of samples is a sum, too: "
            "it can travel in the same message."
        ),
        (
            "Sum first, divide afterwards: send num_samples * flat, with num_samples behind it. "
            "flat.split([g.numel() for g in gradients]) takes it apart, and view_as gives each "
            "part its gradient's shape."
        ),
    ),
    compare="shardlab.ranks.collectives.fusion.all_reduce_fused",
    points=3,
    cases=average_gradients.CASES,
    attempt=average_gradients.attempt,
    properties={
        **average_gradients.EXERCISE.properties,
        "a rank sends one message": evidence.sends_messages(1),
    },
)
