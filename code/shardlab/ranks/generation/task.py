"""A toy task whose answers a checker can mark: count up or down, in steps of one or two.

    prompt    5 +2                a number of 0 to 15, and a mark
    answer    7 9 11 13 15 end    as far as the numbers reach

The base model has learned to count by each step, and mostly ignores the mark. So it answers about a
third of all prompts correctly, and learns the rest from the checker's ones and zeros.
"""

import torch
from torch import Tensor

from shardlab.model.spec import TransformerSpec

from ..transformer import Transformer

NUMBERS = 16
STEPS = {16: 1, 17: -1, 18: 2, 19: -2}  # a mark, and by how much it counts
IGNORED = -100  # as a target, by torch's cross-entropy
PROMPT = 2  # tokens of a prompt
END, PAD = 20, 23  # 21 and 22 are unused, so that 4 ranks can cut a vocabulary of 24
LIMIT = 16  # tokens of the longest answer: 15 numbers and the end
OBEYED = 0.2  # share of the base model's texts that do what their mark says
SPEC = TransformerSpec(
    vocab_size=24,
    context_length=PROMPT + LIMIT,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    style="llama",
)


def prompts(count: int, draws: torch.Generator) -> list[list[int]]:
    """Draw prompts: a number and a mark each; draws: a generator of the CPU."""
    marks = list(STEPS)
    drawn = torch.randint(NUMBERS * len(marks), (count,), generator=draws, device="cpu").tolist()
    return [[each // len(marks), marks[each % len(marks)]] for each in drawn]


def answer(number: int, step: int) -> list[int]:
    """Count from a number, without it, to the border: tokens."""
    return [*range(number + step, NUMBERS if step > 0 else -1, step), END]


def reward(text: list[int]) -> float:
    """Return 1 for a prompt with its answer, else 0."""
    return float(text[PROMPT:] == answer(text[0], STEPS[text[1]]))


def padded(texts: list[list[int]]) -> Tensor:
    """Make rows of equal length: [B, 18]."""
    return torch.tensor([text + [PAD] * (SPEC.context_length - len(text)) for text in texts])


def base_texts(count: int, draws: torch.Generator) -> Tensor:
    """Draw texts that count by any step, and by that of their mark more often: [B, 18]."""
    texts = []
    for number, mark in prompts(count, draws):
        _, other = prompts(1, draws)[0]
        obeys = torch.rand((), generator=draws, device="cpu") < OBEYED
        texts.append([number, mark, *answer(number, STEPS[mark if obeys else other])])
    return padded(texts)


def base_model(seed: int = 0, steps: int = 200) -> Transformer:
    """Train the model with which the ranks begin, in this process: some five seconds."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = Transformer(SPEC)
    draws = torch.Generator("cpu").manual_seed(seed)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    fade = torch.optim.lr_scheduler.LinearLR(adam, 1, 0, steps)  # or rounding decides what it knows
    for _ in range(steps):
        texts = base_texts(64, draws)                                 # [B, S]
        targets = texts[:, 1:].masked_fill(texts[:, 1:] == PAD, IGNORED)  # [B, S - 1]
        adam.zero_grad()
        model(texts[:, :-1], targets).backward()
        adam.step()
        fade.step()
    return model
