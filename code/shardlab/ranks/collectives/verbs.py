"""Collectives from messages between two ranks; the algorithm is a plan (`shardlab.exchanges`) that all ranks execute.

    all_reduce(x, group)                                     # around a ring
    all_reduce(x, group, exchanges.binomial_all_reduce)      # up a tree and down again
    all_reduce(x, group, lambda n: exchanges.hierarchical_all_reduce(n, 4), op="max")

Out of place, for ranks and lengths of any number; all ranks get the same bits, in every run. Before it begins, a
collective makes sure that all ranks have called the same one: see `agree`.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ... import exchanges as plans
from ...exchanges import Plan
from .. import comm
from .exchanges import OPERATIONS, execute

Planner = Callable[[int], Plan]  # for so many ranks
CALL_BYTES = 128  # of a call in words; what is longer is cut off


def all_reduce(
    x: Tensor, group: comm.Group, plan: Planner = plans.ring_all_reduce, op: str = "sum", *, check: bool = True
) -> Tensor:
    """Combine the ranks' tensors, the result on every rank: [...] -> [...]. `op`: sum, average, max, min or product.

    check: make sure that all ranks call the same; leave it out where a short message more is too much.
    Errors: ValueError on every rank, naming who says what, when ranks disagree; for an average of whole numbers.
    """
    made, combine = plan(group.size()), _operation(op, x)
    if check:
        agree(f"{made.name} ({op}) of {_shape(x)}", group)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    execute(made, _flat(x), y.view(-1), group, combine)
    return _averaged(y, group, op)


def reduce(
    x: Tensor,
    group: comm.Group,
    to: int = 0,
    op: str = "sum",
    plan: Planner = plans.binomial_reduce,
    *,
    check: bool = True,
) -> Tensor | None:
    """Combine the ranks' tensors, the result on one rank: [...] -> [...], None on the others."""
    made, combine = plans.rooted(plan(group.size()), to), _operation(op, x)
    if check:
        agree(f"{made.name} ({op}) to rank {to} of {_shape(x)}", group)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    execute(made, _flat(x), y.view(-1), group, combine)
    return _averaged(y, group, op) if group.rank() == to else None


def broadcast(
    x: Tensor, group: comm.Group, source: int = 0, plan: Planner = plans.binomial_broadcast, *, check: bool = True
) -> Tensor:
    """The source's tensor on every rank: [...] -> [...]. Every rank passes a tensor of the same shape and dtype."""
    made = plans.rooted(plan(group.size()), source)
    if check:
        agree(f"{made.name} from rank {source} of {_shape(x)}", group)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    execute(made, _flat(x), y.view(-1), group)
    return y


def reduce_scatter(
    x: Tensor, group: comm.Group, plan: Planner = plans.ring_reduce_scatter, op: str = "sum", *, check: bool = True
) -> Tensor:
    """Combine over ranks, keep your slice of dim 0: [world*n, ...] -> [n, ...]."""
    made, combine, length = plan(group.size()), _operation(op, x), _share(x, group)
    if check:
        agree(f"{made.name} ({op}) of {_shape(x)}", group)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    execute(made, _flat(x), y.view(-1), group, combine)
    return _averaged(y[group.rank() * length : (group.rank() + 1) * length].clone(), group, op)


def all_gather(x: Tensor, group: comm.Group, plan: Planner = plans.ring_all_gather, *, check: bool = True) -> Tensor:
    """Put the ranks' tensors one after another along dim 0: [n, ...] -> [world*n, ...]."""
    made = plan(group.size())
    if check:
        agree(f"{made.name} of {_shape(x)}", group)
    y = x.detach().new_empty(group.size(), *x.shape)
    y[group.rank()] = x.detach()
    execute(made, y.view(-1), y.view(-1), group)
    return y.flatten(0, 1)


def all_to_all(
    x: Tensor, group: comm.Group, plan: Planner = plans.pairwise_all_to_all, *, check: bool = True
) -> Tensor:
    """Slice i of dim 0 goes to rank i, slice j of the result came from rank j: [world*n, ...] -> [world*n, ...]."""
    made, length = plan(group.size()), _share(x, group)
    if check:
        agree(f"{made.name} of {_shape(x)}", group)
    mine = slice(group.rank() * length, (group.rank() + 1) * length)
    both = x.detach().new_empty(2, *x.shape)  # what goes out, and what comes in
    both[0] = x.detach()
    both[1, mine] = x.detach()[mine]
    execute(made, both.view(-1), both.view(-1), group)
    return both[1].clone()


def barrier(group: comm.Group, plan: Planner = plans.dissemination_barrier) -> None:
    """Return when every rank of the group has come here."""
    here = torch.zeros(1, dtype=torch.uint8, device=comm.device(group))
    execute(plan(group.size()), here, here, group, "max")


def agree(call: str, group: comm.Group) -> None:
    """Make sure that all ranks say the same, in words of at most CALL_BYTES bytes; they go around by doubling.

    Ranks that bring other lengths would not always hang: a message that is too short leaves garbage behind it, and one
    that is too long ends the receiver. Errors: ValueError on every rank, naming who says what.
    """
    said = torch.zeros(group.size(), CALL_BYTES, dtype=torch.uint8)
    words = call.encode()[:CALL_BYTES]
    said[group.rank(), : len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    said = said.to(comm.device(group))
    execute(plans.doubling_all_gather(group.size()), said.view(-1), said.view(-1), group)
    calls = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in said.cpu().tolist()]
    if len(set(calls)) > 1:
        raise ValueError(f"the ranks do not call the same collective: {_told(dict(enumerate(calls)))}")


def _told(calls: Mapping[int, str]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, call in calls.items():
        ranks.setdefault(call, []).append(str(rank))
    return "; ".join(f"rank{'s' * (len(who) > 1)} {', '.join(who)}: {call}" for call, who in ranks.items())


def _shape(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _flat(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(-1)


def _share(x: Tensor, group: comm.Group) -> int:
    """Rows of dim 0 for each rank."""
    size = group.size()
    if x.shape[0] % size:
        raise ValueError(
            f"dim 0 has {x.shape[0]} rows, which {size} ranks cannot share equally; pad it to a multiple of {size}"
        )
    return x.shape[0] // size


def _operation(op: str, x: Tensor) -> str:
    """What combines two tensors: an average is a sum that is divided at the end."""
    if op == "average" and not x.is_floating_point():
        raise ValueError(f"an average of {x.dtype} is not whole; sum it, or pass x.float()")
    if op not in ("average", *OPERATIONS):
        raise ValueError(f"unknown operation {op!r}; use one of average, {', '.join(OPERATIONS)}")
    return "sum" if op == "average" else op


def _averaged(y: Tensor, group: comm.Group, op: str) -> Tensor:
    return y.div_(group.size()) if op == "average" else y
