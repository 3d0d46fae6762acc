"""Linear layers that read whole sequences, but keep only this rank's slice for backward.

Under sequence parallelism the first matrices of attention and MLP read a gathered tensor. A plain
linear layer would keep all of it for backward, on every rank. Korthikanti et al. 2022, section
4.2.2 (https://arxiv.org/abs/2205.05198), keep the slice and gather again in backward. All
activations of a layer are then divided by tp, for one more all-gather for each of its two inputs
(10 halves of an all-reduce instead of 8).

Shapes: B sequences of S tokens, h numbers a token; tp ranks have slices [B, S/tp, h] and f/tp
outputs.
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from shardlab import comm

from . import sequence


class SharedGather:
    """The second gathering of a slice, in backward: once for all layers that read it."""

    def __init__(self, group: comm.Group):
        self.group = group
        self.whole: Tensor | None = None  # [B, S, h]

    def gather(self, local: Tensor) -> Tensor:
        """Gather the slices, or return what was gathered: [B, S/tp, h] -> [B, S, h]."""
        if self.whole is None:
            self.whole = sequence.join(local, self.group)
        return self.whole


class GatherOnce(Function):
    """`sequence.GatherSequence`, whose backward, the last of all, ends the sharing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shared: SharedGather) -> Tensor:
        ctx.shared = shared
        return sequence.join(x, shared.group)                    # [B, S/tp, h] -> [B, S, h]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.shared.whole = None
        local = sequence.sum_slices(grad, ctx.shared.group)      # partial -> [B, S/tp, h]
        return local, None


class LinearKeepingSlice(Function):
    """x @ weight.T + bias, which keeps the slice of x instead of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,              # [B, S, h]
        weight: Tensor,         # [f/tp, h]
        bias: Tensor | None,    # [f/tp]
        local: Tensor,          # [B, S/tp, h], this rank's slice of x
        shared: SharedGather,
    ) -> Tensor:
        ctx.save_for_backward(weight, local)
        ctx.shared = shared
        return F.linear(x, weight, bias)                         # [B, S, f/tp]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, local = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)                               # [B * S, f/tp]
        dx = grad @ weight.to(grad.dtype) if needs_x else None   # [B, S, h], partial
        dweight = None
        if needs_weight:
            x = ctx.shared.gather(local).flatten(0, -2)          # [B * S, h]
            dweight = rows.T @ x.to(grad.dtype)                  # [f/tp, h]
        dbias = rows.sum(0) if needs_bias else None              # [f/tp]
        return dx, dweight, dbias, None, None


class GatheredInput:
    """Gathers a norm's output, and knows the slice behind each gathered tensor in use."""

    def __init__(self, group: comm.Group):
        self.group = group
        self.slices = WeakTensorKeyDictionary()  # whole -> its slice, and their SharedGather

    def __call__(self, x: Tensor) -> Tensor:  # [B, S/tp, h] -> [B, S, h]
        shared = SharedGather(self.group)
        whole: Tensor = GatherOnce.apply(x, shared)
        self.slices[whole] = x.detach(), shared
        return whole


class RegatheringLinear(nn.Module):
    """A linear layer that reads what a GatheredInput has gathered."""

    def __init__(self, plain: nn.Linear, gathered: GatheredInput):
        super().__init__()
        self.weight = plain.weight
        self.bias = plain.bias
        self.gathered = gathered

    def forward(self, x: Tensor) -> Tensor:  # [B, S, h] -> [B, S, f/tp]
        local, shared = self.gathered.slices[x]
        y: Tensor = LinearKeepingSlice.apply(x, self.weight, self.bias, local, shared)
        return y
