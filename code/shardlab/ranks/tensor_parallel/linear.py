"""Linear layers of which each rank has a part of the outputs (columns), or of the inputs (rows).

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053): columns and rows of the paper's
matrices are rows and columns of torch's weights.

Shapes: h is the width of a token, f that between a column and a row layer, over tp ranks; [...] are
batch and sequence.
"""

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from shardlab import comm
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks


def column_linear(
    x: Tensor,             # [..., h], whole
    weight: Tensor,        # [f/tp, h]
    bias: Tensor | None,   # [f/tp]
    group: comm.Group,
    enter: type[Function] = CopyToRanks,
) -> Tensor:
    """Compute this rank's outputs from all inputs: [..., h] -> [..., f/tp]."""
    x = enter.apply(x, group)
    return F.linear(x, weight, bias)


def row_linear(
    x: Tensor,             # [..., f/tp], this rank's part
    weight: Tensor,        # [h, f/tp]
    bias: Tensor | None,   # [h]
    group: comm.Group,
    leave: type[Function] = SumOverRanks,
) -> Tensor:
    """Compute all outputs from inputs on all ranks: [..., f/tp] -> [..., h].

    The bias is added after the sum: before it, every rank would add it once.
    """
    part = F.linear(x, weight)               # [..., h], a partial sum
    y: Tensor = leave.apply(part, group)     # [..., h], whole
    return y if bias is None else y + bias


class RowLinear(nn.Module):
    """The last linear layer of a cut region, with this rank's columns of a plain layer's weight."""

    def __init__(self, plain: nn.Linear, group: comm.Group, leave: type[Function]):
        super().__init__()
        self.weight = plain.weight
        self.bias = plain.bias
        self.group = group
        self.leave = leave

    def forward(self, x: Tensor) -> Tensor:  # [..., f/tp] -> [..., h]
        return row_linear(x, self.weight, self.bias, self.group, self.leave)
