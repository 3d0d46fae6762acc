"""A linear layer cut over ranks, by outputs or by inputs: what each rank is given, and what it should get."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shardlab.ranks import comm

from .. import evidence
from ..checker import Case
from . import passes


@dataclass(frozen=True)
class Linear:
    """The sizes of a layer, and the dim along which each tensor is cut; of those that every rank has whole, None."""

    inputs: int
    outputs: int
    dims: dict[str, int | None]  # of x, weight, bias and output

    def attempt(self, function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> passes.Seen:
        """Call the function with this rank's pieces, and go back with its piece of the output's gradient."""
        pieces = {name: self.piece(case, name, whole, rank) for name, whole in self.whole(case).items()}
        incoming = self.piece(case, "output", self.incoming(case), rank)
        return passes.both(lambda *tensors: function(*tensors, group), pieces, incoming)

    def reference(self, case: Case, rank: int) -> evidence.Named:
        """Output and gradients of the uncut layer, of which a rank has its pieces."""
        leaves = {name: whole.requires_grad_() for name, whole in self.whole(case).items()}
        y = F.linear(leaves["x"], leaves["weight"], leaves["bias"])
        gradients = torch.autograd.grad(y, list(leaves.values()), self.incoming(case))
        pieces = {
            f"{name}.grad": self.piece(case, name, gradient, rank)
            for name, gradient in zip(leaves, gradients, strict=True)
        }
        return {"output": self.piece(case, "output", y.detach(), rank), **pieces}

    def whole(self, case: Case) -> dict[str, Tensor]:
        """case.given: how many vectors x has, in its own dims."""
        x, weight = passes.numbers(0, *case.given, self.inputs), passes.numbers(1, self.outputs, self.inputs)
        return {"x": x, "weight": weight, "bias": passes.numbers(2, self.outputs)}

    def incoming(self, case: Case) -> Tensor:
        """The gradient of the whole output."""
        return passes.numbers(3, *case.given, self.outputs)

    def piece(self, case: Case, name: str, whole: Tensor, rank: int) -> Tensor:
        """What a rank has of this tensor."""
        dim = self.dims[name]
        return whole.clone() if dim is None else passes.piece(whole, case, rank, dim)

    def told(self, case: Case) -> str:
        """The case's input, in words."""
        ranks, rows = len(case.members(0)), [*case.given, self.inputs]
        cut, size = ("inputs", self.inputs) if self.dims["bias"] is None else ("outputs", self.outputs)
        bias = evidence.show(self.whole(case)["bias"])
        return f"x of shape {rows}, {size // ranks} of {size} {cut} on each of {ranks} ranks, bias {bias}"


CASES = [
    Case(world_size=1, title="one vector", given=()),
    Case(world_size=2, title="one vector", given=()),
    Case(world_size=3, title="two vectors", given=(2,)),
    Case(world_size=4, title="two sequences of two tokens", given=(2, 2)),
    Case(world_size=4, title="two vectors", given=(2,), group_size=2),
]
