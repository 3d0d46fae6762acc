"""Share a small model, its data, and trainings in one process and on ranks, among tests of ZeRO."""

import contextlib
import functools

import torch
from torch import nn

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer, zero

SIZES = {
    "vocab_size": 37,
    "context_length": 10,
    "hidden_size": 10,
    "num_layers": 3,
    "num_heads": 1,
}  # odd: padding
SAMPLES, STEPS, CLIP = 24, 3, 0.2  # samples divide by 1 to 4 ranks
FROZEN = "blocks.1.mlp.down.weight"
OPTIMIZERS = {  # a large eps: a small one magnifies the rounding of gradients near 0
    "AdamW": lambda pieces: torch.optim.AdamW(pieces, lr=0.02, weight_decay=0.1, eps=1e-4),
    "Adam": lambda pieces: torch.optim.Adam(pieces, lr=0.02, eps=1e-4),
    "SGD": lambda pieces: torch.optim.SGD(pieces, lr=0.1, momentum=0.9),
}
CASES = [  # style, stage, optimizer, microbatches, hold gradients back until the last one, clip
    (style, stage, optimizer, microbatches, hold, clip)
    for stage in (1, 2, 3)
    for style, optimizer, microbatches, hold, clip in [
        ("gpt2", "AdamW", 1, False, False),
        ("gpt2", "SGD", 3, True, True),
        ("llama", "Adam", 3, False, True),
    ]
]


def build(style, seed=0):
    """Build the reference model with a frozen matrix in the middle; GPT-2 style has a tied head."""
    torch.manual_seed(seed)
    model = transformer.Transformer(TransformerSpec(**SIZES, style=style)).double()
    model.get_parameter(FROZEN).requires_grad_(False)
    return model


def tokens_of(step):
    return torch.randint(
        SIZES["vocab_size"], (SAMPLES, 11), generator=torch.Generator().manual_seed(step)
    )


def error(model, tokens):
    return model(tokens[:, :-1], tokens[:, 1:])


def clones(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@functools.cache
def alone(style, optimizer, clip):
    """Return (norm, state dict) after each step of one process that sees all samples."""
    model, history = build(style), []
    steps = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        steps.zero_grad()
        error(model, tokens_of(step)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP if clip else 1e9)
        steps.step()
        history.append((norm, clones(model.state_dict())))
    return history


def together(group, style, stage, optimizer, microbatches, hold, clip):
    """Return the same from one rank, which starts from its own seed and sees its own samples."""
    model, history = build(style, seed=group.rank()), []
    states = zero.shard(model, group, stage=stage, optimizer=OPTIMIZERS[optimizer])
    for step in range(STEPS):
        states.zero_grad()
        mine = tokens_of(step).chunk(group.size())[group.rank()]
        for number, piece in enumerate(mine.tensor_split(microbatches)):
            last = number == microbatches - 1
            with contextlib.nullcontext() if last or not hold else states.no_sync():
                (error(model, piece) * len(piece) / len(mine)).backward()
        norm = states.clip(CLIP if clip else 1e9)
        states.step()
        history.append((norm, states.full_state_dict()))
    return history


def all_cases(group):
    return [together(group, *case) for case in CASES]
