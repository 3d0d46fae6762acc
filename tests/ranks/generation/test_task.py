"""The checker accepts an answer and nothing else, and base texts count, mostly whatever the mark says."""

import pytest
import torch

from shardlab.ranks.generation import task


@pytest.mark.parametrize(
    ("prompt", "right"),
    [([12, 16], [13, 14, 15]), ([2, 17], [1, 0]), ([11, 18], [13, 15]), ([4, 19], [2, 0]), ([15, 16], [])],
)
def test_the_checker_accepts_the_answer_alone(prompt, right):
    assert task.reward([*prompt, *right, task.END]) == 1
    wrong = [*prompt, 3, *right, task.END], [*prompt, *right], [*prompt, *right, task.END, task.END]
    assert [task.reward(text) for text in wrong] == [0, 0, 0]


def test_base_texts_count_by_any_step_and_obey_two_in_five():
    """One in five obeys, and one in four of the others by chance; the longest fill the context."""
    texts = [row[row != task.PAD].tolist() for row in task.base_texts(2_000, torch.Generator().manual_seed(0))]
    for number, _, *answer in texts:
        assert any(answer == task.answer(number, step) for step in task.STEPS.values())
    assert 0.37 < sum(map(task.reward, texts)) / len(texts) < 0.47  # steps of 1 and 2 may agree at the border
    assert max(map(len, texts)) == task.SPEC.context_length
