"""Published models have the parameters of released checkpoints and of the papers' tables."""

import pytest
import torch

from shardlab.costs.facts import models
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer

RELEASED = [model for model in models.PUBLISHED.values() if model.parameters is not None]
SIZES = {"vocab_size": 40, "context_length": 24, "hidden_size": 16, "num_layers": 3, "num_heads": 4}


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_counts_equal_those_of_the_released_checkpoints(model):
    assert models.num_parameters(model.spec) == model.parameters


def test_the_two_counts_everybody_knows():
    assert models.num_parameters(models.published("GPT-2 small").spec) == 124_439_808
    assert models.num_parameters(models.published("Llama 3 8B").spec) == 8_030_261_248


# Brown et al. 2020, Table D.1, in millions.
GPT3_TABLE_D1 = {
    "GPT-3 125M": 125,
    "GPT-3 350M": 356,
    "GPT-3 760M": 760,
    "GPT-3 1.3B": 1_320,
    "GPT-3 2.7B": 2_650,
    "GPT-3 6.7B": 6_660,
    "GPT-3 13B": 12_850,
    "GPT-3 175B": 174_600,
}
MEGATRON = [name for name in models.PUBLISHED if name.startswith("Megatron")]


@pytest.mark.parametrize("name", GPT3_TABLE_D1)
def test_gpt_3_has_the_counts_of_its_table(name):
    """To its three or four digits. With the printed width of 5140 the 13B model would have 12,953 million."""
    counted = models.num_parameters(models.published(name).spec) / 1e6
    assert counted == pytest.approx(GPT3_TABLE_D1[name], rel=0.004)
    assert counted == pytest.approx(GPT3_TABLE_D1[name], abs=0.5) or GPT3_TABLE_D1[name] > 1000


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_follows_its_formula_and_its_name(name):
    """Narayanan et al. 2021, equation 2: 12 l h^2 (1 + 13/12h + (V+s)/12lh), which leaves out the last norm (2h)."""
    spec = models.published(name).spec
    layers, h = spec.num_layers, spec.hidden_size
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + (spec.vocab_size + spec.context_length) / (12 * layers * h))
    assert models.num_parameters(spec) == pytest.approx(formula + 2 * h, rel=1e-12)
    printed = float(name.removeprefix("Megatron ").removesuffix("B"))
    digits = 0.05 if "." in name else 0.5
    assert models.num_parameters(spec) / 1e9 == pytest.approx(printed, abs=digits)


def test_all_ten_sizes_of_megatron_are_there():
    """Narayanan et al. 2021, Table 1; and two of Korthikanti et al. 2022, Table 3, that are not among them."""
    assert len(MEGATRON) == 10 + 2
    assert len({model.spec for model in models.PUBLISHED.values()}) == len(models.PUBLISHED)


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
