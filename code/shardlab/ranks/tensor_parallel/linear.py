"""Linear layers of which each rank has a part: by outputs (columns of the paper's matrices), or by inputs (rows).

Shoeybi et al. 2019, section 3 (https://arxiv.org/abs/1909.08053). D = inputs, F = outputs, tp = ranks of the group.
"""

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from .. import comm
from .conjugates import CopyToRanks, SumOverRanks


def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: comm.Group, enter: type[Function] = CopyToRanks
) -> Tensor:
    """Some outputs of a linear layer, from all inputs: [..., D] and [F/tp, D] -> [..., F/tp]."""
    return F.linear(enter.apply(x, group), weight, bias)


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: comm.Group, leave: type[Function] = SumOverRanks
) -> Tensor:
    """All outputs of a linear layer, from some inputs on each rank: [..., F/tp] and [D, F/tp] -> [..., D].

    The bias is added after the sum: before it, it would count once for every rank.
    """
    y: Tensor = leave.apply(F.linear(x, weight), group)
    return y if bias is None else y + bias


class RowLinear(nn.Module):
    """The last layer of a cut region, in the place of a plain one that holds some columns of the weight."""

    def __init__(self, plain: nn.Linear, group: comm.Group, leave: type[Function]):
        super().__init__()
        self.weight, self.bias, self.group, self.leave = plain.weight, plain.bias, group, leave

    def forward(self, x: Tensor) -> Tensor:
        return row_linear(x, self.weight, self.bias, self.group, self.leave)
