import pytest
import torch

from shardlab.costs import models
from shardlab.ranks import transformer
from shardlab.spec import TransformerSpec

RELEASED = [model for model in models.PUBLISHED.values() if model.parameters is not None]
SIZES = {"vocab_size": 40, "context_length": 24, "hidden_size": 16, "num_layers": 3, "num_heads": 4}


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_counts_equal_those_of_the_released_checkpoints(model):
    assert models.num_parameters(model.spec) == model.parameters


def test_the_two_counts_everybody_knows():
    assert models.num_parameters(models.published("GPT-2 small").spec) == 124_439_808
    assert models.num_parameters(models.published("Llama 3 8B").spec) == 8_030_261_248


def test_gpt_3_has_its_175_billion():
    """Brown et al. 2020: 175.0 billion in Table 2.1, 174,600 million in Table D.1."""
    count = models.num_parameters(models.published("GPT-3 175B").spec)
    assert count == pytest.approx(174.6e9, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 2, "ffn_size": 40},
        {"tied_head": False},
        {"style": "llama"},
        {"style": "llama", "num_kv_heads": 1, "ffn_size": 44},
        {"style": "llama", "tied_head": True},
    ],
)
def test_predicted_equals_counted_on_the_reference_model(changes):
    spec = TransformerSpec(**{**SIZES, **changes})
    with torch.device("meta"):
        model = transformer.Transformer(spec)
    assert models.num_parameters(spec) == sum(parameter.numel() for parameter in model.parameters())
    block = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    assert models.layer_parameters(spec) == block


def test_a_tied_head_has_no_parameters_of_its_own():
    assert models.parameters(models.published("Llama 3.2 1B").spec)["head"] == 0
    assert models.parameters(models.published("Llama 3 8B").spec)["head"] == 128256 * 4096


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"GPT-5.*GPT-2 small"):
        models.published("GPT-5")
