"""A backward in two halves: the gradient of the input now, the gradients of the weights later.

Qi et al. 2023 (https://arxiv.org/abs/2401.10241). The backward of y = x W^T + b has two products, and neither needs the
other:

    dx = dy W          the layer before waits for it
    dW = dy^T x        nobody waits for it, until the optimizer steps

For the second it is enough to keep x and dy. All else that autograd had kept, such as what attention needs, is freed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Later = list[Callable[[], None]]  # what is left to do for the weights


class SplitBackward:
    """Lets every nn.Linear inside a module split its backward; the module itself knows nothing of it.

        split, later = SplitBackward(model), []
        with split.into(later):
            y = model(x)
        y.sum().backward()       # x.grad is there; later holds a function for each linear layer
        for weights in later:
            weights()            # adds the gradients of its weights

    All other parameters get their gradients at once: embeddings and norms take no matrix product. Where activations are
    computed again, backward belongs in the block, too. `register_hook` on a weight works; hooks of other kinds do not.
    """

    def __init__(self, module: nn.Module) -> None:
        self._later: Later | None = None
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                setattr(layer, "forward", partial(self._linear, layer))  # noqa: B010

    @contextmanager
    def into(self, later: Later) -> Iterator[None]:
        """Inside, forwards are prepared for a backward that leaves the weights' share in `later`."""
        before, self._later = self._later, later
        try:
            yield
        finally:
            self._later = before

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if self._later is None or not (torch.is_grad_enabled() and layer.weight.requires_grad):
            return F.linear(x, layer.weight, layer.bias)
        anchor = torch.empty(0, requires_grad=True)  # so that backward comes here, whether x needs a gradient or not
        y: Tensor = _Linear.apply(x, anchor, layer, self._later)
        return y


class _Linear(torch.autograd.Function):
    """The weights are no inputs of it: autograd would call their hooks, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: nn.Linear, later: Later) -> Tensor:
        ctx.save_for_backward(x, layer.weight, layer.bias)
        ctx.later = later
        return F.linear(x, layer.weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight, bias = ctx.saved_tensors
        ctx.later.append(partial(_add_gradients, x.detach(), dy, weight, bias))
        dx = (dy @ weight.to(dy.dtype)).to(x.dtype) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


def _add_gradients(x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Of one layer's weights: x [..., in], dy [..., out] -> [out, in] and [out]."""
    x, dy = x.flatten(0, -2), dy.flatten(0, -2)
    _add(weight, dy.T @ x.to(dy.dtype))
    if bias is not None and bias.requires_grad:
        _add(bias, dy.sum(dim=0))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    for hook in (parameter._backward_hooks or {}).values():  # which autograd calls where it makes the gradient
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
