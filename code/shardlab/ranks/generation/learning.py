"""The loss of a step: answers that were better than others to the same prompt become likelier.

Advantages within a group of answers are those of GRPO (https://arxiv.org/abs/2402.03300), the
clipped ratio of probabilities is PPO's (https://arxiv.org/abs/1707.06347). The ratio's old log p is
that of the generator, whose weights may be older than the trainer's.

B = samples, which are texts here, S = tokens of a text, A = answers to a prompt, V = vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SMOOTH = 0.1  # added to the deviation of rewards, which may be 0
CLIP = 0.2  # how far from 1 a ratio may go


@dataclass(frozen=True)
class Rollouts:
    """Texts that a generator drew; `drawn` leaves out prompts and padding."""

    tokens: Tensor     # [B, S], int64
    drawn: Tensor      # [B, S], bool
    log_p: Tensor      # [B, S], in nats, of tokens drawn
    version: Tensor    # [B, S], steps of training behind the weights that drew them
    advantage: Tensor  # [B]


def advantages(rewards: Tensor, answers: int) -> Tensor:
    """Compare each reward with those of the same prompt, which stand together: [B] -> [B]."""
    groups = rewards.view(-1, answers)                                # [B/A, A]
    deviation, mean = torch.std_mean(groups, 1, correction=0, keepdim=True)  # [B/A, 1]
    return ((groups - mean) / (deviation + SMOOTH)).flatten()         # [B]


def log_p(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log p of each token but the first: [B, S - 1, V] and [B, S] -> [B, S - 1]."""
    return logits.double().log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def loss(ours: Tensor, texts: Rollouts) -> Tensor:
    """Return the clipped loss, a mean over tokens drawn; ours: the trainer's log p, [B, S - 1]."""
    ratio = torch.exp(ours - texts.log_p[:, 1:])                      # [B, S - 1]
    advantage = texts.advantage[:, None]                              # [B, 1]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return -gain[texts.drawn[:, 1:]].mean()                           # []
