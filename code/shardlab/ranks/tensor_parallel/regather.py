"""Keep a slice and gather again: layers that read whole sequences, and keep of them only this rank's slice.

Under sequence parallelism queries, keys, values and the first feed-forward matrix read a gathered tensor. A plain
linear layer would keep it for backward, whole, on every rank. Korthikanti et al. 2022, section 4.2.2
(https://arxiv.org/abs/2205.05198), keep the slice and gather again in backward: all activations of a layer are then
divided by tp, for one all-gather more at each of its two entrances (10 halves of an all-reduce instead of 8).
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from .. import comm
from . import sequence


class Again:
    """Gathers a slice a second time, once for all layers that ask."""

    def __init__(self, group: comm.Group):
        self.group = group
        self.whole: Tensor | None = None

    def gather(self, part: Tensor) -> Tensor:
        """The whole sequence: [B, S/tp, D] -> [B, S, D]."""
        if self.whole is None:
            self.whole = sequence.join(part, self.group)
        return self.whole


class GatherForNow(Function):
    """`sequence.GatherSequence`; its backward, which comes after that of all readers, ends their sharing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, again: Again) -> Tensor:
        ctx.again = again
        return sequence.join(x, again.group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.again.whole = None
        return sequence.sum_slices(grad, ctx.again.group), None


class LinearOfGathered(Function):
    """x @ weight.T + bias; keeps the slice of x instead of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, part: Tensor, again: Again) -> Tensor:
        ctx.save_for_backward(weight, part)
        ctx.again = again
        return F.linear(x, weight, bias)                              # [B, S, F/tp]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, part = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)                                    # [B * S, F/tp]
        x = ctx.again.gather(part).flatten(0, -2) if needs_weight else None
        return (
            grad @ weight.to(grad.dtype) if needs_x else None,        # [B, S, D]
            None if x is None else rows.T @ x.to(grad.dtype),         # [F/tp, D]
            rows.sum(0) if needs_bias else None,
            None,
            None,
        )


class Entrance:
    """Gathers what a norm puts out, and knows the slice behind every gathered tensor while that is in use."""

    def __init__(self, group: comm.Group):
        self.group = group
        self.slices = WeakTensorKeyDictionary()

    def __call__(self, x: Tensor) -> Tensor:  # [B, S/tp, D] -> [B, S, D]
        again = Again(self.group)
        whole: Tensor = GatherForNow.apply(x, again)
        self.slices[whole] = x.detach(), again
        return whole


class Linear(nn.Module):
    """A linear layer that reads what `entrance` gathered."""

    def __init__(self, plain: nn.Linear, entrance: Entrance):
        super().__init__()
        self.weight, self.bias, self.entrance = plain.weight, plain.bias, entrance

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = LinearOfGathered.apply(x, self.weight, self.bias, *self.entrance.slices[x])
        return y
