"""LoRA: the numbers that are trained, and what is held for them."""

import pytest

from shardlab.costs.facts import mixtures, models
from shardlab.costs.memory import lora, parts


def test_thin_matrices_beside_all_of_llama_3_8b_have_the_published_number():
    """As `print_trainable_parameters` of PEFT says for rank 16: 41,943,040 of 8,072,204,288."""
    spec = models.published("Llama 3 8B").spec
    trained = lora.parameters(spec, 16)
    assert (trained, trained + models.num_parameters(spec)) == (41_943_040, 8_072_204_288)


def test_frozen_numbers_have_neither_gradients_nor_states():
    trained, both = parts.model_states(100.0), parts.model_states(100.0, frozen=1000.0)
    assert both == {**trained, "parameters": trained["parameters"] + 2 * 1000.0}
    cut = parts.model_states(100.0, frozen=1000.0, dp=4, zero=3)
    assert sum(cut.values()) == pytest.approx(sum(both.values()) / 4)


def test_a_mixture_is_refused():
    with pytest.raises(ValueError, match="dense"):
        lora.parameters(mixtures.published("Mixtral 8x7B").spec, 8)
