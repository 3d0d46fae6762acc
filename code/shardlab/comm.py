"""Communication between ranks: one function per verb, and every verb takes its group.

No verb changes the tensor it was given, except the `start...` verbs, which borrow buffers. Ranks in
arguments are positions in the group. In shapes, N is the number of ranks in the group.

No gradient passes through a verb. So a tensor that requires one is refused where autograd records,
which it does not do in the forward and backward of a torch.autograd.Function.

In a dry run tensors are on torch's meta device: collectives return shapes and communicate nothing.
The verbs are those of the MPI standard (https://www.mpi-forum.org/docs/) and torch.distributed.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup
Wait = Callable[[], Any]  # returns when the communication has completed
Send = tuple[Tensor, int]  # a tensor, and the rank that it goes to
Receive = tuple[Tensor, int]  # the tensor to fill, and the rank that it comes from
Rows = Sequence[int] | None  # one number for each rank; None: all alike
Started = tuple[Tensor, Wait]  # what is being filled, and what waits for it
# torch 2.13 renamed these two; older releases only have the second name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_OPERATIONS = "sum", "max", "min", "product"
INTERNAL = {__file__}  # files whose lines the report of a run leaves out; the ledger adds its own


def device(group: Group) -> torch.device:
    """Return the device of this rank's tensors: its GPU if the group uses NCCL, else the CPU."""
    nccl = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


def all_reduce(x: Tensor, group: Group, op: str = "sum") -> Tensor:
    """Combine the tensors of all ranks, and return the result on every rank: [...] -> [...].

    op: sum, max, min or product.
    """
    _check(group, x)
    y = x.clone(memory_format=torch.contiguous_format)
    _communicate(dist.all_reduce, y, _operation(op), group=group)
    return y


def broadcast(x: Tensor, group: Group, source: int = 0) -> Tensor:
    """Return the tensor of `source` on every rank: [...] -> [...].

    Every rank passes a tensor of the same shape and dtype.
    """
    _check(group, x, ranks=[source])
    y = x.clone(memory_format=torch.contiguous_format)
    _communicate(dist.broadcast, y, group=group, group_src=source)
    return y


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Concatenate the tensors of all ranks along dim 0, in rank order: [n, ...] -> [N*n, ...].

    Tensors without dimensions, such as losses, make one row each: [] -> [N].
    """
    _check(group, x)
    x = torch.atleast_1d(x)
    y = x.new_empty(group.size() * len(x), *x.shape[1:])
    _communicate(_all_gather, y, x.contiguous(), group=group)
    return y


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """Sum over ranks and keep this rank's slice of dim 0: [N*n, ...] -> [n, ...]."""
    _check(group, x, split=True)
    y = x.new_empty(_rows(x, group), *x.shape[1:])
    _communicate(_reduce_scatter, y, x.contiguous(), group=group)
    return y


def all_to_all(x: Tensor, group: Group, sends: Rows = None, receives: Rows = None) -> Tensor:
    """Send each rank a slice of dim 0, and concatenate the slices received: [n, ...] -> [m, ...].

    sends, receives: rows for each rank and from each. Errors: ValueError unless they make up dim 0.
    """
    _check(group, x, split=True)
    y, wait = start_all_to_all(x.contiguous(), group, sends, receives)
    wait()
    return y


def barrier(group: Group) -> None:
    """Return when every rank of the group has called this."""
    _check(group)
    dist.barrier(group)


def _communicate(verb: Callable[..., Any], y: Tensor, *args: Any, **options: Any) -> None:
    if not y.is_meta:  # else this is a dry run
        verb(y, *args, **options)


def start_all_reduce(buffer: Tensor, group: Group) -> Wait:
    """Start to sum `buffer` over ranks, in place, and return a function that waits for the sum.

    Do not touch the buffer before that function has returned.
    """
    _check(group, buffer)
    wait: Wait = dist.all_reduce(buffer, group=group, async_op=True).wait
    return wait


def start_all_gather(x: Tensor, into: Tensor, group: Group) -> Wait:
    """Start to concatenate the tensors of all ranks in `into`: [n] -> [N*n].

    Returns a function that waits for the result. Do not touch either tensor before it has returned.
    """
    _check(group, x, into)
    wait: Wait = _all_gather(into.view(-1), x.view(-1), group=group, async_op=True).wait
    return wait


def start_all_to_all(x: Tensor, group: Group, sends: Rows = None, receives: Rows = None) -> Started:
    """Start an `all_to_all` of a contiguous tensor: [n, ...] -> [m, ...].

    Do not touch either tensor before the function that waits has returned.
    """
    _check(group, x, split=True)
    size, rows = group.size(), len(x)
    sends = list(sends or [rows // size] * size)
    receives = list(receives or sends)
    if not len(sends) == len(receives) == size or sum(sends) != rows:
        raise ValueError(
            f"dim 0 has {rows} rows, and {size} ranks get {sends} of them; pad it to a multiple "
            f"of {size}, or pass {size} numbers as `sends` and `receives`, with sum(sends) = {rows}"
        )
    y = x.new_empty(sum(receives), *x.shape[1:])
    if y.is_meta:  # a dry run
        return y, lambda: None
    return y, dist.all_to_all_single(y, x, receives, sends, group=group, async_op=True).wait


def start_reduce_scatter(x: Tensor, group: Group) -> Callable[[], Tensor]:
    """Start to sum over ranks, each keeping its slice: [N*n] -> [n].

    Returns a function that waits and returns the slice. Do not touch `x` before it has returned. On
    CPUs the ranks send each other their slices, because gloo's own reduce-scatter is an all-reduce
    that discards all but one slice, and sends twice as much.
    """
    _check(group, x, split=True)
    x = x.view(-1)                                                    # [N*n]
    slices = x.view(group.size(), _rows(x, group))                    # [N, n], one for each rank
    if x.is_cuda:
        y = torch.empty_like(slices[0])                               # [n], the sum
        arriving: list[Tensor] = []
        waits = [_reduce_scatter(y, x, group=group, async_op=True).wait]
    else:
        y = slices[group.rank()].clone()                              # [n], one term of the sum
        others = [other for other in range(group.size()) if other != group.rank()]
        arriving = [torch.empty_like(y) for _ in others]              # the other terms
        sends = [(slices[other], other) for other in others]
        waits = start_messages(sends, list(zip(arriving, others, strict=True)), group)

    def finish() -> Tensor:
        for wait in waits:
            wait()
        for each in arriving:
            y.add_(each)
        return y

    return finish


def send(x: Tensor, group: Group, to: int) -> None:
    """Send `x` to one rank, and return when `x` may be reused."""
    _check(group, x, ranks=[to])
    dist.send(x.contiguous(), group=group, group_dst=to)


def receive(like: Tensor, group: Group, source: int) -> Tensor:
    """Receive a tensor of the shape and dtype of `like` from `source`."""
    _check(group, like, ranks=[source])
    y = torch.empty_like(like, memory_format=torch.contiguous_format)
    dist.recv(y, group=group, group_src=source)
    return y


def exchange(x: Tensor, group: Group, to: int, source: int) -> Tensor:
    """Send `x` to one rank and receive a tensor of the same shape and dtype from another.

    Cannot deadlock, unlike two ranks that both `send` first.
    """
    _check(group, x, ranks=[to, source])
    if to == source == group.rank():
        return x.clone()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    for wait in start_messages([(x.contiguous(), to)], [(y, source)], group):
        wait()
    return y


def start_messages(sends: Sequence[Send], receives: Sequence[Receive], group: Group) -> list[Wait]:
    """Start to send and to receive, and return one function per message that waits for it.

    The functions of the sends come first. Do not touch the tensors, which must be contiguous,
    before their functions have returned. Messages from one rank to another arrive in order. NCCL
    pairs a send and a receive only within one call.
    """
    messages = [*sends, *receives]
    _check(group, *(x for x, _ in messages), ranks=[other for _, other in messages])
    if any(x.is_cuda for x, _ in messages):
        requests = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x, to in sends]
        requests += [dist.P2POp(dist.irecv, y, group=group, group_peer=by) for y, by in receives]
        works = dist.batch_isend_irecv(requests)
        return [lambda: [work.wait() for work in works]] * len(requests)
    # group.recv is what dist.irecv calls; calling it directly takes half the time. Receives come
    # first: gloo asks for a message on the connection that sends use, and would queue behind them.
    arriving = [group.recv([y], source, 0) for y, source in receives]
    leaving = [group.send([x], to, 0) for x, to in sends]
    return [work.wait for work in [*leaving, *arriving]]


def split(group: Group, size: int) -> Group:
    """Cut the group into groups of `size` neighbours; return this rank's. Every rank calls it."""
    _check_splits(group, size)
    first = group.rank() // size * size
    return subgroup(group, range(first, first + size))


def across(group: Group, size: int) -> Group:
    """Group the ranks that have the same position in the groups of `split`; return this rank's.

    Six ranks in groups of 3, which are 0 1 2 and 3 4 5, give 0 3, 1 4 and 2 5. All call it.
    """
    _check_splits(group, size)
    return subgroup(group, range(group.rank() % size, group.size(), size))


def subgroup(group: Group, members: Sequence[int]) -> Group:
    """Make a group of some ranks of this one, in ascending order; only its members call it.

    All members must have made the same number of groups before: torch derives the name by which
    they find each other from that number.
    """
    _check(group, ranks=members)
    ranks = dist.get_process_group_ranks(group)
    made: Group = dist.new_group([ranks[n] for n in members], use_local_synchronization=True)
    return made


def _check(group: Group, *tensors: Tensor, ranks: Sequence[int] = (), split: bool = False) -> None:
    verb = sys._getframe(1).f_code.co_name
    for x in tensors:
        if not isinstance(x, Tensor):
            wrong = f"{verb} needs a tensor, got {x!r:.60}"
            raise TypeError(f"{wrong}; pass numbers as torch.tensor(...)")
        if x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{verb} got a tensor of shape {tuple(x.shape)} that requires a gradient, and no "
                "gradient passes through a verb; pass x.detach() or use torch.no_grad() if none "
                "should, else call the verb in the forward and backward of a "
                "torch.autograd.Function, as those of shardlab.plain.tensor_parallel do"
            )
    absent: object = dist.GroupMember.NON_GROUP_MEMBER  # what torch returns in place of a group
    if group == absent:
        wrong = f"rank {dist.get_rank()} is not in this group"
        raise ValueError(f"{wrong}; only ranks given to dist.new_group may communicate in it")
    for rank in ranks:
        if not 0 <= rank < group.size():
            raise ValueError(f"there is no rank {rank} in a group of {group.size()} ranks")
    if split and not all(x.ndim for x in tensors):
        raise ValueError(
            f"{verb} splits dim 0 over the ranks, and got a tensor without dimensions; "
            f"pass one of shape (n, ...), with n a multiple of {group.size()}"
        )


def _rows(x: Tensor, group: Group) -> int:
    """Return the number of rows in each rank's slice of dim 0."""
    size, rows = group.size(), len(x)
    if rows % size:
        raise ValueError(f"{rows} rows do not split over {size} ranks; pad to a multiple of {size}")
    return rows // size


def _check_splits(group: Group, size: int) -> None:
    _check(group)
    n = group.size()
    if size < 1 or n % size:
        raise ValueError(f"{n} ranks do not split into groups of {size}; use a divisor of {n}")


def _operation(name: str) -> Any:
    if name not in _OPERATIONS:
        raise ValueError(f"unknown operation {name!r}; use one of {', '.join(_OPERATIONS)}")
    return getattr(dist.ReduceOp, name.upper())
