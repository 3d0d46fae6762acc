"""What ranks say to each other, one function a verb; every function takes the group it talks to.

Out of place: no function changes the tensor it was given. Ranks in arguments are positions in the group.
The verbs and their meaning are those of the MPI standard (https://www.mpi-forum.org/docs/) and of torch.distributed.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
# torch 2.13 renamed these two; older releases only have the second name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


def device(group: Group) -> torch.device:
    """Where this rank's tensors live: its GPU when the group speaks NCCL, else the CPU."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def all_reduce(x: Tensor, group: Group, op: str = "sum") -> Tensor:
    """Combine the ranks' tensors, the result on every rank: [...] -> [...]. `op`: sum, max, min or product."""
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, _operation(op), group=group)
    return y


def start_all_reduce(buffer: Tensor, group: Group) -> Callable[[], Any]:
    """Begin to sum `buffer` over ranks and return at once; call the result to wait.

    The one verb that works in place: you lend the buffer until the wait returns, and must not touch it before.
    """
    work = dist.all_reduce(buffer, group=group, async_op=True)
    wait: Callable[[], Any] = work.wait
    return wait


def broadcast(x: Tensor, group: Group, source: int = 0) -> Tensor:
    """The source's tensor on every rank: [...] -> [...]. Every rank passes a tensor of the same shape and dtype."""
    y = x.clone(memory_format=torch.contiguous_format)
    dist.broadcast(y, group=group, group_src=source)
    return y


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Put the ranks' tensors one after another along dim 0: [n, ...] -> [world*n, ...]."""
    y = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    _all_gather(y, x.contiguous(), group=group)
    return y


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Sum over ranks, keep your slice of dim 0: [world*n, ...] -> [n, ...]."""
    size = group.size()
    if x.shape[0] % size:
        raise ValueError(
            f"dim 0 has {x.shape[0]} rows, which {size} ranks cannot share equally; pad it to a multiple of {size}"
        )
    y = x.new_empty(x.shape[0] // size, *x.shape[1:])
    _reduce_scatter(y, x.contiguous(), group=group)
    return y


def send(x: Tensor, group: Group, to: int) -> None:
    """Send x to one rank; returns when x may be reused."""
    dist.send(x.contiguous(), group=group, group_dst=to)


def receive(like: Tensor, group: Group, source: int) -> Tensor:
    """What `source` sent, as a new tensor with the shape and dtype of `like`."""
    y = torch.empty_like(like, memory_format=torch.contiguous_format)
    dist.recv(y, group=group, group_src=source)
    return y


def exchange(x: Tensor, group: Group, to: int, source: int) -> Tensor:
    """Send x to one rank while receiving its like from another; cannot deadlock as two `send`s would."""
    if to == source == group.rank():
        return x.clone()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    requests = [
        dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=to),
        dist.P2POp(dist.irecv, y, group=group, group_peer=source),
    ]
    for work in dist.batch_isend_irecv(requests):
        work.wait()
    return y


def barrier(group: Group) -> None:
    """Return when every rank of the group has come here."""
    dist.barrier(group)


def split(group: Group, size: int) -> Group:
    """Cut the group into groups of `size` neighbours and return this rank's own; every rank of `group` must call it."""
    if size < 1 or group.size() % size:
        raise ValueError(f"{group.size()} ranks do not split into groups of {size}; use a divisor of {group.size()}")
    mine: Group
    mine, _ = dist.new_subgroups(size, group=group)
    return mine


def _operation(name: str) -> Any:
    if name not in _OPERATIONS:
        raise ValueError(f"unknown operation {name!r}; use one of {', '.join(_OPERATIONS)}")
    return _OPERATIONS[name]
