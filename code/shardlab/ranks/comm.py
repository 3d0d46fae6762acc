"""What ranks say to each other, one function a verb; every function takes the group it talks to.

Out of place: no function changes the tensor it was given. Ranks in arguments are positions in the group. Of tensors on
torch's meta device, which have no numbers, the collectives give the shape of the result, and nothing is said.
The verbs and their meaning are those of the MPI standard (https://www.mpi-forum.org/docs/) and of torch.distributed.
"""

from collections.abc import Callable, Sequence
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
    if not y.is_meta:
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
    if not y.is_meta:
        dist.broadcast(y, group=group, group_src=source)
    return y


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Put the ranks' tensors one after another along dim 0: [n, ...] -> [world*n, ...]."""
    y = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    if not y.is_meta:
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
    if not y.is_meta:
        _reduce_scatter(y, x.contiguous(), group=group)
    return y


def start_all_gather(x: Tensor, into: Tensor, group: Group) -> Callable[[], Any]:
    """Begin to put the ranks' tensors one after another into `into`: [n] -> [world*n]; call the result to wait.

    You lend both tensors until then.
    """
    work = _all_gather(into, x, group=group, async_op=True)
    wait: Callable[[], Any] = work.wait
    return wait


def start_reduce_scatter(x: Tensor, group: Group) -> Callable[[], Tensor]:
    """Begin to sum over ranks, each keeping its slice: [world*n] -> [n]; call the result to wait, and for the slice.

    You lend the tensor until then. On CPUs the ranks send each other their slices: gloo's own reduce-scatter is an
    all-reduce of which the rest is thrown away, and sends twice as much.
    """
    size, rank = group.size(), group.rank()
    if x.is_cuda:
        waits, slices = [], x.new_empty(1, x.numel() // size)
        waits.append(_reduce_scatter(slices[0], x, group=group, async_op=True).wait)
    else:
        slices, theirs = torch.empty_like(x).view(size, -1), x.view(size, -1)
        others = [other for other in range(size) if other != rank]
        waits = start([(theirs[other], other) for other in others], [(slices[other], other) for other in others], group)
        slices[rank] = theirs[rank]

    def finish() -> Tensor:
        for wait in waits:
            wait()
        return slices[0] if len(slices) == 1 else slices.sum(dim=0)

    return finish


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
    requests = [  # the receive first: gloo tells the sender to begin on the line on which it sends, and would queue
        dist.P2POp(dist.irecv, y, group=group, group_peer=source),
        dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=to),
    ]
    for work in dist.batch_isend_irecv(requests):
        work.wait()
    return y


def start(
    sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], group: Group
) -> list[Callable[[], Any]]:
    """Begin to send (tensor, to whom) and to receive (into which tensor, from whom), and return at once.

    Returns a function for each message, those sent first, that waits for it. The tensors are contiguous and lent until
    then. Messages from one rank to another arrive in order; NCCL pairs a send and a receive only within one call.
    """
    if any(tensor.is_cuda for tensor, _ in [*sends, *receives]):
        requests = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x, to in sends]
        requests += [dist.P2POp(dist.irecv, y, group=group, group_peer=source) for y, source in receives]
        works = dist.batch_isend_irecv(requests)
        return [lambda: [work.wait() for work in works]] * len(requests)
    arriving = [group.recv([y], source, 0) for y, source in receives]  # what dist.irecv calls, in half the time
    leaving = [group.send([x], to, 0) for x, to in sends]
    return [work.wait for work in [*leaving, *arriving]]


def barrier(group: Group) -> None:
    """Return when every rank of the group has come here."""
    dist.barrier(group)


def split(group: Group, size: int) -> Group:
    """Cut the group into groups of `size` neighbours and return this rank's own; every rank of `group` must call it."""
    if size < 1 or group.size() % size:
        raise ValueError(f"{group.size()} ranks do not split into groups of {size}; use a divisor of {group.size()}")
    first = group.rank() // size * size
    return subgroup(group, range(first, first + size))


def across(group: Group, size: int) -> Group:
    """Group the ranks that have the same place in the groups of `split`; every rank of `group` must call it.

    Six ranks in groups of 3, which are 0 1 2 and 3 4 5, give 0 3, 1 4 and 2 5. Returns this rank's own.
    """
    if size < 1 or group.size() % size:
        raise ValueError(f"{group.size()} ranks do not split into groups of {size}; use a divisor of {group.size()}")
    return subgroup(group, range(group.rank() % size, group.size(), size))


def subgroup(group: Group, members: Sequence[int]) -> Group:
    """A group of some ranks of this one, in order of their numbers; the members call it, and nobody else.

    They must be in equally many groups by now: torch forms the name by which they find each other from that number.
    """
    ranks = dist.get_process_group_ranks(group)
    mine: Group = dist.new_group([ranks[member] for member in members], use_local_synchronization=True)
    return mine


def _operation(name: str) -> Any:
    if name not in _OPERATIONS:
        raise ValueError(f"unknown operation {name!r}; use one of {', '.join(_OPERATIONS)}")
    return _OPERATIONS[name]
