"""The plain file of a layer with rounded operands: torch's own layer if nothing is rounded."""

import functools
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from shardlab import trace
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.plain import low_precision, rounded_linear
from shardlab.plain.low_precision import mx, nvfp4, per_tensor, stochastic
from shardlab.plain.rounded_linear import LayerRecipe as Recipe
from shardlab.plain.rounded_linear import gathered, hadamard, rotate
from shardlab.ranks import transformer
from shardlab.ranks.observe import ledger

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SQUARE = functools.partial(nvfp4, rows=16)
CLOSE = {"rtol": 0, "atol": 1e-12}


def model_and_batch(style="gpt2"):
    torch.manual_seed(0)
    spec = TransformerSpec(
        vocab_size=32, context_length=32, hidden_size=32, num_layers=2, num_heads=4, ffn_size=64, style=style
    )
    return transformer.Transformer(spec).double(), torch.randint(32, (2, 33))


def gradients(model, batch):
    model.zero_grad()
    model(batch[:, :-1], batch[:, 1:]).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("rotation", [rounded_linear.unchanged, rotate])
def test_a_recipe_that_rounds_nothing_is_the_layer_of_torch(style, rotation):
    """Forward and backward, with biases and without; a rotation of both operands changes nothing."""
    model, batch = model_and_batch(style)
    expected = gradients(model, batch)
    rounded_linear.replace(model, Recipe(rotation=rotation))
    for name, gradient in gradients(model, batch).items():
        torch.testing.assert_close(gradient, expected[name], **CLOSE)


def operands():
    generator = torch.Generator().manual_seed(1)  # of their own: draws differ between two calls
    normal = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    return normal(32, 64, requires_grad=True), normal(64, 64, requires_grad=True), normal(32, 64)


def products(recipe):
    x, weight, dy = operands()
    y = rounded_linear.Rounded.apply(x, weight, recipe)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy)


def test_each_product_rounds_both_operands_along_the_dimension_that_it_sums():
    x, weight, dy = (each.detach() for each in operands())
    y, dx, dw = products(Recipe(inputs=nvfp4, weights=SQUARE, gradients=per_tensor, rotation=rotate))
    torch.testing.assert_close(y, nvfp4(x) @ SQUARE(weight).T, **CLOSE)
    torch.testing.assert_close(dx, per_tensor(dy) @ SQUARE(weight.T).T, **CLOSE)
    torch.testing.assert_close(dw, per_tensor(rotate(dy.T)) @ nvfp4(rotate(x.T)).T, **CLOSE)


def test_weights_in_square_blocks_are_the_same_in_forward_and_in_backward():
    weight = operands()[1].detach()
    assert torch.equal(SQUARE(weight.T).T, SQUARE(weight))
    assert not torch.equal(nvfp4(weight.T).T, nvfp4(weight))


def test_a_hadamard_matrix_is_orthogonal_and_gives_each_neighbour_a_share():
    matrix = hadamard(16).double()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(16, dtype=torch.float64), **CLOSE)
    outlier = torch.zeros(1, 32, dtype=torch.float64)
    outlier[0, 3] = 8
    assert rotate(outlier)[0].abs().tolist() == [2] * 16 + [0] * 16


def test_the_mean_of_many_draws_comes_near_and_a_nearest_number_stays_as_far():
    """The gradient of the weight, if only the gradient of the output is rounded, with scales that cut nothing."""
    exact = products(Recipe())[2]
    by_chance = Recipe(gradients=functools.partial(low_precision.mx_up, rounding=stochastic))
    one, mean = products(by_chance)[2], sum(products(by_chance)[2] for _ in range(256)) / 256
    assert (mean - exact).norm().item() == pytest.approx((one - exact).norm().item() / 16, rel=0.15)
    to_nearest = Recipe(gradients=low_precision.mx_up)
    assert torch.equal(products(to_nearest)[2], products(to_nearest)[2])  # so is any mean of them


def test_a_layer_that_is_replaced_anew_follows_the_last_recipe():
    layer, x = nn.Linear(32, 32), torch.randn(2, 3, 32)
    expected = layer(x)
    rounded_linear.replace(layer, Recipe(inputs=mx))
    assert not torch.equal(layer(x), expected)
    rounded_linear.replace(layer, Recipe())
    torch.testing.assert_close(layer(x), expected)


def test_a_layer_takes_no_tokens_as_an_expert_may_get_none():
    layer, x = nn.Linear(32, 64), torch.ones(0, 32, requires_grad=True)
    rounded_linear.replace(layer, Recipe(mx, mx, mx))
    y = layer(x)
    y.sum().backward()
    assert (y.shape, x.grad.shape) == ((0, 64), (0, 32))
    assert not layer.weight.grad.any()


# ---- ranks -----------------------------------------------------------------------------------------------------------


def weight_of_all():
    torch.manual_seed(2)
    return torch.randn(12, 32)


def gather(group, weight):
    piece = weight.chunk(group.size())[group.rank()].to(torch.float32)
    with ledger.Ledger() as book:
        whole = gathered(piece, group)
    return whole, sum(map(trace.wire_bytes, book.events))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_gather_what_one_process_would_round_at_a_byte_a_number(ranks):
    weight = weight_of_all()
    for whole, sent in run(gather, weight, world_size=ranks):
        assert torch.equal(whole, per_tensor(weight))
        scale = 2 * (ranks - 1) / ranks * 4
        assert sent == pytest.approx((ranks - 1) / ranks * weight.numel() + scale)
    assert not run(gather, torch.zeros(12, 32), world_size=1)[0][0].any()


# ---- wrong versions --------------------------------------------------------------------------------------------------


def both_lessons():
    test_a_recipe_that_rounds_nothing_is_the_layer_of_torch("gpt2", rounded_linear.rotate)
    test_each_product_rounds_both_operands_along_the_dimension_that_it_sums()


@pytest.mark.parametrize("wrong", ["not orthogonal", "one operand is rotated", "the gradient is not rounded"])
def test_a_wrong_version_is_noticed(wrong, monkeypatch):
    patches = {
        "not orthogonal": ("hadamard", lambda size: torch.ones(size, size) / size),
        "one operand is rotated": ("backward_to_weight", lambda dy, x, recipe: recipe.rotation(dy.mT) @ x),
        "the gradient is not rounded": ("backward_to_inputs", lambda dy, weight, recipe: dy @ weight),
    }
    monkeypatch.setattr(rounded_linear, *patches[wrong])
    with pytest.raises(AssertionError):
        both_lessons()
