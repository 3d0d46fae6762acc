"""Recipes hold the bytes for each parameter that are in print."""

import pytest

from shardlab.costs.facts import recipes


def test_both_counts_for_mixed_precision_are_in_print():
    """16 bytes in the ZeRO paper; Megatron keeps fp32 gradients: 18. https://docs.nvidia.com/megatron-core/"""
    assert recipes.recipe("mixed, 16-bit gradients").bytes_per_parameter == 16
    assert recipes.recipe("mixed, fp32 gradients").bytes_per_parameter == 18
    assert recipes.recipe("fp32 Adam").bytes_per_parameter == 16


def test_adam_in_8_bits_keeps_a_quarter_of_the_states():
    """Dettmers et al. 2022, https://arxiv.org/abs/2110.02861: 2 bytes for 8, and a scale for each block of 2048."""
    small, large = recipes.recipe("mixed, 8-bit Adam"), recipes.recipe("mixed, 16-bit gradients")
    assert (large.optimizer - 4) / (small.optimizer - 4) == pytest.approx(4, rel=0.002)
    assert small.bytes_per_parameter == pytest.approx(10, rel=0.0004)


def test_autocast_keeps_fp32_states_and_16_bit_activations():
    """4 + 4 + 8 bytes, as in fp32: https://docs.pytorch.org/docs/stable/amp.html"""
    cast, plain = recipes.recipe("autocast, fp32 Adam"), recipes.recipe("fp32 Adam")
    assert cast.bytes_per_parameter == plain.bytes_per_parameter == 16
    assert (cast.element, plain.element) == (2, 4)


def test_a_model_loaded_in_16_bits_keeps_half_of_the_bytes():
    """Parameter, gradient and Adam's two numbers take two bytes each; there is no master copy."""
    assert recipes.recipe("16 bits throughout").bytes_per_parameter == 8


def test_muon_keeps_one_momentum_where_adam_keeps_two_numbers():
    """Liu et al. 2025, https://arxiv.org/abs/2502.16982: one buffer, half of AdamW's."""
    muon, adam = recipes.recipe("mixed, Muon"), recipes.recipe("mixed, 16-bit gradients")
    assert 2 * (muon.optimizer - 4) == adam.optimizer - 4
    assert muon.bytes_per_parameter == 12


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=lambda recipe: recipe.name)
def test_an_update_reads_the_gradient_and_reads_and_writes_the_rest(recipe):
    """The 16-bit parameter of mixed precision is only written: it is made from the master copy."""
    rest = recipe.optimizer if recipe.name.startswith("mixed") else recipe.parameters + recipe.optimizer
    written = recipe.parameters if recipe.name.startswith("mixed") else 0
    assert recipe.update_traffic == pytest.approx(recipe.gradients + 2 * rest + written, rel=0.001)
    assert recipe.source


def test_an_unknown_recipe_is_an_error():
    with pytest.raises(ValueError, match="known: fp32 Adam; fp32 SGD with momentum"):
        recipes.recipe("int4")
