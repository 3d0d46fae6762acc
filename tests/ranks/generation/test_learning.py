"""The loss is its formula, token by token; a token whose ratio is clipped has no gradient."""

import math
import statistics

import pytest
import torch

from shardlab.ranks.generation import learning

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]  # of two prompts; the second teaches nothing
OURS = [[-0.5, -1.0], [-2.0, -0.1], [-1.0, -1.0]]
OLD = [[-0.6, -2.0], [-2.0, -1.5], [-0.5, -3.0]]  # ratios of 1.1, 2.7; 1, 4.1; 0.6, and one of no token drawn


def test_advantages_are_taken_within_a_prompt():
    first = REWARDS[:3]
    expected = [(each - statistics.mean(first)) / (statistics.pstdev(first) + 0.1) for each in first]
    found = learning.advantages(torch.tensor(REWARDS, dtype=torch.float64), 3)
    assert found.tolist() == pytest.approx([*expected, 0, 0, 0])


@pytest.mark.parity("trainer_generator", "the clipped loss, token by token")
def test_the_loss_is_its_formula_and_what_is_clipped_teaches_nothing():
    advantage = [2.0, -1.0, -0.5]
    ours = torch.tensor(OURS, dtype=torch.float64, requires_grad=True)
    drawn = torch.tensor([[False, True, True], [False, True, True], [False, True, False]])
    old = torch.tensor([[0.0, *row] for row in OLD], dtype=torch.float64)
    a = torch.tensor(advantage, dtype=torch.float64)
    loss = learning.loss(ours, learning.Rollouts(drawn, drawn, old, drawn, a))
    gains = []
    for text, token in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):
        ratio = math.exp(OURS[text][token] - OLD[text][token])
        gains.append(min(ratio * advantage[text], min(max(ratio, 0.8), 1.2) * advantage[text]))
    assert loss.item() == pytest.approx(-sum(gains) / 5)
    loss.backward()
    assert (ours.grad != 0).tolist() == [[True, False], [True, True], [False, False]]


def test_log_p_is_that_of_the_next_token():
    logits, tokens = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
    found = learning.log_p(logits, tokens)
    assert float(found[1, 0]) == pytest.approx(float(logits[1, 0].double().log_softmax(-1)[3]))
