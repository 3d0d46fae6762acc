"""Average a tensor over ranks, with an all-reduce or through one server, or all weights of a model.

The parameter server is Li et al. 2014,
https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu.
Shapes: [...] is any shape, the same on every rank.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from .. import comm

Mean = Callable[[Tensor, comm.Group], Tensor]


def mean(x: Tensor, group: comm.Group) -> Tensor:
    """Average `x` over ranks with an all-reduce: [...] -> [...]."""
    return comm.all_reduce(x, group) / group.size()


def mean_through_server(x: Tensor, group: comm.Group, server: int = 0) -> Tensor:
    """Average `x` over ranks through one rank, `server`: [...] -> [...].

    All others send it their tensor and receive the average; it carries the traffic of all.
    """
    if group.rank() != server:
        comm.send(x, group, server)
        return comm.receive(x, group, server)
    others = [rank for rank in range(group.size()) if rank != server]
    total = x.clone()
    for rank in others:
        total += comm.receive(x, group, rank)
    total /= group.size()
    for rank in others:
        comm.send(total, group, rank)
    return total


@torch.no_grad()
def average_weights(
    parameters: Iterable[nn.Parameter], group: comm.Group, mean: Mean = mean
) -> None:
    """Average weights now and then, between steps of each rank by itself: local SGD.

    The same as averaging gradients if ranks average after every step of plain SGD; with Adam, or
    after several steps, it is not. Source: Stich 2018, https://arxiv.org/abs/1805.09767.
    """
    for parameter in parameters:
        parameter.copy_(mean(parameter, group))
