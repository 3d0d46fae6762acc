"""Averages by hand, to compare with: of gradients or of weights, by all-reduce or through one server.

Parameter server: Li et al. 2014, https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from .. import comm

Mean = Callable[[Tensor, comm.Group], Tensor]


def mean(x: Tensor, group: comm.Group) -> Tensor:
    """The average over ranks, by all-reduce: [...] -> [...]."""
    return comm.all_reduce(x, group) / group.size()


def mean_through_server(x: Tensor, group: comm.Group, server: int = 0) -> Tensor:
    """The same through one rank: all send to it, it sums and sends back. It alone carries all the traffic."""
    if group.rank() != server:
        comm.send(x, group, server)
        return comm.receive(x, group, server)
    total, others = x.clone(), [rank for rank in range(group.size()) if rank != server]
    for rank in others:
        total += comm.receive(x, group, rank)
    total /= group.size()
    for rank in others:
        comm.send(total, group, rank)
    return total


def average_gradients(parameters: Iterable[nn.Parameter], group: comm.Group, mean: Mean = mean) -> None:
    """Data parallelism in two lines: after backward, one average per parameter that has a gradient."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = mean(parameter.grad, group)


@torch.no_grad()
def average_weights(parameters: Iterable[nn.Parameter], group: comm.Group, mean: Mean = mean) -> None:
    """Let ranks step alone and average their weights now and then: local SGD (https://arxiv.org/abs/1805.09767).

    Equal to averaging gradients after every step of plain SGD; not with Adam, and not after several steps.
    """
    for parameter in parameters:
        parameter.copy_(mean(parameter, group))
