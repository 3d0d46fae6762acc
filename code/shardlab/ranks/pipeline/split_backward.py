"""A backward in two halves: the gradient of the input now, the gradients of the weights later.

Qi et al. 2023 (https://arxiv.org/abs/2401.10241). The backward of y = x W^T + b has two products,
and neither needs the other:

    dx = dy W          the layer before waits for it
    dW = dy^T x        nothing waits for it until the optimizer steps

Only x and dy have to be kept for the second product. What else autograd had kept, such as the
inputs of attention, is freed after the first half.

Shapes: a layer turns `inputs` numbers into `outputs`; [...] stands for batch and sequence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Later = list[Callable[[], None]]  # functions that compute the gradients of weights


class SplitBackward:
    """Splits the backward of every nn.Linear inside a module, which itself knows nothing of it.

        split, later = SplitBackward(model), []
        with split.into(later):
            y = model(x)
        y.sum().backward()       # x.grad is there; later has a function for each linear layer
        for weights in later:
            weights()            # adds the gradients of its weights

    All other parameters, such as those of embeddings and norms, get their gradients at once. If
    activations are recomputed, call backward inside the block as well. Tensor.register_hook on a
    weight works; hooks of other kinds do not.
    """

    def __init__(self, module: nn.Module) -> None:
        self._later: Later | None = None  # a list inside of `into`
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                setattr(layer, "forward", partial(self._linear, layer))  # noqa: B010

    @contextmanager
    def into(self, later: Later) -> Iterator[None]:
        """Let the backward of each forward inside append the weights' half to `later`."""
        before = self._later
        self._later = later
        try:
            yield
        finally:
            self._later = before

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Compute the layer in place of its own forward: [..., inputs] -> [..., outputs]."""
        if self._later is None or not (torch.is_grad_enabled() and layer.weight.requires_grad):
            return F.linear(x, layer.weight, layer.bias)
        # Autograd calls a backward only if an input needs a gradient. x may need none, and the
        # weights are no inputs (see below): so here is an empty tensor that needs one.
        anchor = torch.empty(0, requires_grad=True)
        y: Tensor = _Linear.apply(x, anchor, layer, self._later)
        return y


class _Linear(torch.autograd.Function):
    """x @ weight.T + bias, whose backward leaves the gradients of both for later.

    The weights are not its inputs: autograd would call their hooks without a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, layer: nn.Linear, later: Later
    ) -> Tensor:
        ctx.save_for_backward(x, layer.weight, layer.bias)
        ctx.later = later
        return F.linear(x, layer.weight, layer.bias)     # [..., inputs] -> [..., outputs]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight, bias = ctx.saved_tensors
        ctx.later.append(partial(_add_gradients, x.detach(), dy, weight, bias))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ weight.to(dy.dtype)).to(x.dtype)  # [..., outputs] -> [..., inputs]
        return dx, None, None, None


def _add_gradients(x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Add the gradients of one layer's weight, [outputs, inputs], and bias, [outputs]."""
    x_rows = x.flatten(0, -2)                            # [rows, inputs]
    dy_rows = dy.flatten(0, -2)                          # [rows, outputs]
    _add(weight, dy_rows.T @ x_rows.to(dy.dtype))
    if bias is not None and bias.requires_grad:
        _add(bias, dy_rows.sum(dim=0))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a parameter's, after the hooks that autograd would have called."""
    gradient = gradient.to(parameter.dtype)
    hooks = parameter._backward_hooks or {}
    for hook in hooks.values():
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
