"""A linear layer whose products take rounded operands, plainly.

    recipe = LayerRecipe(inputs=mx, weights=mx, gradients=mx)  # MXFP8, of low_precision
    rounded_linear.replace(model.blocks, recipe)   # embedding and head stay as they are
    model(inputs, targets).backward()              # gradients in the type of the weights

    y  = x Wᵀ      sums over inputs
    dx = dy W      sums over outputs
    dW = dyᵀ x     sums over tokens

A scale can be taken out of a sum only if all its numbers are in the sum. So both operands are
rounded in blocks along the dimension that is summed, and each tensor is rounded twice. Weights
in square blocks are the same numbers both times. Sums are in the type of x: no chip's rounding.

T = tokens, N = ranks; in, out = numbers per token that go into the layer, and that come out.
Rotations: NVIDIA 2025, https://arxiv.org/abs/2509.25149.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from shardlab import comm

E4M3 = torch.finfo(torch.float8_e4m3fn)
Change = Callable[[Tensor], Tensor]                # of a matrix, along its last dimension


def unchanged(x: Tensor) -> Tensor:
    """Return x."""
    return x


class LayerRecipe(NamedTuple):
    """What happens to the operands of a layer's products."""

    inputs: Change = unchanged
    weights: Change = unchanged
    gradients: Change = unchanged
    rotation: Change = unchanged                   # before rounding, of the operands of dW


class Rounded(Function):
    """The three products of a linear layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: LayerRecipe) -> Tensor:
        ctx.save_for_backward(x, weight)           # a chip keeps them rounded: fewer bytes
        ctx.recipe = recipe
        x = recipe.inputs(x)                       # [T, in]
        weight = recipe.weights(weight)            # [out, in]
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        recipe = ctx.recipe
        dx = backward_to_inputs(dy, weight, recipe)
        dw = backward_to_weight(dy, x, recipe)
        return dx, dw, None


def backward_to_inputs(dy: Tensor, weight: Tensor, recipe: LayerRecipe) -> Tensor:
    """Multiply by the weight, which is rounded once more, along its rows: [T, in]."""
    dy = recipe.gradients(dy)                      # [T, out]
    weight = recipe.weights(weight.mT)             # [in, out]
    return dy @ weight.mT


def backward_to_weight(dy: Tensor, x: Tensor, recipe: LayerRecipe) -> Tensor:
    """Sum over tokens; a rotation of both operands leaves the sum as it is: [out, in]."""
    dy = recipe.rotation(dy.mT)                    # [out, T]
    x = recipe.rotation(x.mT)                      # [in, T]
    dy = recipe.gradients(dy)
    x = recipe.inputs(x)
    return dy @ x.mT


def hadamard(size: int) -> Tensor:
    """Make an orthogonal matrix whose entries have one magnitude; size is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        upper = torch.cat([matrix, matrix], dim=1)
        lower = torch.cat([matrix, -matrix], dim=1)
        matrix = torch.cat([upper, lower])
    return matrix / torch.tensor(size).sqrt()


def rotate(x: Tensor) -> Tensor:
    """Mix 16 neighbours, so that each gets a share of the largest: [out, T] -> [out, T].

    Random signs, always the same ones, keep neighbours that are alike from adding up in one.
    """
    generator = torch.Generator().manual_seed(0)
    signs = 1 - 2 * torch.randint(2, (16, 1), generator=generator)
    rotation = signs * hadamard(16)                # [16, 16], orthogonal
    blocks: Tensor = x.unflatten(1, (-1, 16))      # [out, T/16, 16]
    return (blocks @ rotation.to(x)).flatten(1)


def forward(layer: nn.Linear, recipe: LayerRecipe, x: Tensor) -> Tensor:
    """Compute a layer's output, [..., in] -> [..., out]. A bias is not rounded."""
    tokens = x.flatten(0, -2)                      # [T, in]
    y: Tensor = Rounded.apply(tokens, layer.weight, recipe)
    if layer.bias is not None:
        y = y + layer.bias
    return y.view(*x.shape[:-1], len(layer.weight))


def replace(module: nn.Module, recipe: LayerRecipe) -> None:
    """Let every linear layer of a module follow a recipe."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.__dict__["forward"] = partial(forward, layer, recipe)


def gathered(piece: Tensor, group: comm.Group) -> Tensor:
    """Gather a weight of which each rank has rows, a byte per number: [out/N, in] -> [out, in].

    Equals per_tensor of the whole weight, bit by bit. The scale needs one number of each rank.
    """
    most = comm.all_reduce(piece.abs().max(), group, "max")
    scale = most / E4M3.max
    safe = torch.where(scale > 0, scale, 1)
    numbers = (piece / safe).to(torch.float8_e4m3fn)
    sent = numbers.view(torch.uint8)               # to any backend a byte is a byte
    whole = comm.all_gather(sent, group)           # [out, in]
    numbers = whole.view(torch.float8_e4m3fn)
    return scale * numbers.to(piece)
