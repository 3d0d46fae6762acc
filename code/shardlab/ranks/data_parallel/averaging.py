"""Average a tensor over ranks, or all weights of a model.

Shapes: [...] is any shape, the same on every rank.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shardlab import comm


def mean(x: Tensor, group: comm.Group) -> Tensor:
    """Average `x` over ranks with an all-reduce: [...] -> [...]."""
    return comm.all_reduce(x, group) / group.size()


@torch.no_grad()
def average_weights(parameters: Iterable[nn.Parameter], group: comm.Group) -> None:
    """Average weights now and then, between steps of each rank by itself: local SGD.

    The same as averaging gradients if ranks average after every step of plain SGD; with Adam, or
    after several steps, it is not. Source: Stich 2018, https://arxiv.org/abs/1805.09767.
    """
    for parameter in parameters:
        parameter.copy_(mean(parameter, group))
