"""What exercises on cut linear layers share: what a rank is given, and what it should get.

`columns` cuts a layer by its outputs, as `plain.tensor_parallel.ColumnLinear` does; `rows` cuts it
by its inputs, as `RowLinear` does. B vectors, h and f inputs or outputs, N ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import evidence
from ..checker import Case
from ..tensors import piece

WIDTH = 3  # h, of what every rank has whole


@dataclass(frozen=True)
class Given:
    """Layers side by side, and the vectors that go through them."""

    widths: Sequence[int]  # f of each layer: what is cut over the ranks
    vectors: Sequence[int] = ()  # the dims of x before its last: (), (B,) or (B, S)
    biases: Sequence[bool] = (True,)  # which layers have one; the last counts for all that follow


def has_bias(given: Given, number: int) -> bool:
    """Say whether the layer of this number has a bias."""
    return given.biases[min(number, len(given.biases) - 1)]


def make(tensors: Mapping[str, Tensor]) -> list[nn.Linear]:
    """Make layers whose parameters are these: "weight 0", "bias 0", "weight 1", ..."""
    made = []
    for name, weight in tensors.items():
        if not name.startswith("weight"):
            continue
        bias = tensors.get(name.replace("weight", "bias"))
        outputs, inputs = weight.shape
        linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
        assert isinstance(weight, nn.Parameter)
        linear.weight = weight
        if isinstance(bias, nn.Parameter):
            linear.bias = bias
        made.append(linear)
    return made


def columns_whole(case: Case) -> dict[str, Tensor]:
    """Make x and the layers, before they are cut by columns."""
    given: Given = case.given
    tensors = {"x": evidence.whole_numbers(0, *given.vectors, WIDTH)}
    for number, width in enumerate(given.widths):
        tensors[f"weight {number}"] = evidence.whole_numbers(10 + number, width, WIDTH)
        if has_bias(given, number):
            tensors[f"bias {number}"] = evidence.whole_numbers(20 + number, width)
    return tensors


def rows_whole(case: Case) -> dict[str, Tensor]:
    """Make the input of each layer and the layers, before they are cut by rows."""
    given: Given = case.given
    tensors = {}
    for number, width in enumerate(given.widths):
        tensors[f"x {number}"] = evidence.whole_numbers(number, *given.vectors, width)
        tensors[f"weight {number}"] = evidence.whole_numbers(10 + number, WIDTH, width)
        if has_bias(given, number):
            tensors[f"bias {number}"] = evidence.whole_numbers(20 + number, WIDTH)
    return tensors


def apply(tensors: Mapping[str, Tensor], number: int, x: Tensor) -> Tensor:
    """Compute one uncut layer's output."""
    return functional.linear(x, tensors[f"weight {number}"], tensors.get(f"bias {number}"))


def cut(
    tensors: Mapping[str, Tensor], dims: Mapping[str, int], case: Case, rank: int
) -> dict[str, Tensor]:
    """Take a rank's piece of each tensor whose name begins with one in `dims`, along that dim."""
    pieces = {}
    for name, whole in tensors.items():
        dim = next((dim for kind, dim in dims.items() if name.startswith(kind)), None)
        pieces[name] = whole.clone() if dim is None else piece(whole, case, rank, dim)
    return pieces


def gradients(
    tensors: Mapping[str, Tensor], outputs: Sequence[Tensor], incoming: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Return the gradient of each tensor, under its name."""
    found = torch.autograd.grad(outputs, [*tensors.values()], incoming)
    return {f"{name}.grad": gradient for name, gradient in zip(tensors, found, strict=True)}


def describe(case: Case, cut_dim: str) -> str:
    """Describe the case's input: which layers, and what of them is on each rank."""
    ranks = len(case.members(0))
    widths = ", ".join(f"{width // ranks} of {width}" for width in case.given.widths)
    layers = "a layer" if len(case.given.widths) == 1 else f"{len(case.given.widths)} layers"
    return f"{case.title}: {layers} with {widths} {cut_dim} on each of {ranks} ranks"
