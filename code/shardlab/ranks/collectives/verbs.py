"""Collectives made of point-to-point messages, by a plan of `shardlab.exchanges`.

    all_reduce(x, group)                                     # around a ring
    all_reduce(x, group, exchanges.binomial_all_reduce)      # up a tree and down again
    all_reduce(x, group, lambda n: exchanges.hierarchical_all_reduce(n, 4), op="max")

They are out of place, and take any number of ranks and any length; all ranks get the same bits, in
every run. Before it begins, a collective checks that all ranks have called the same: see `agree`.

Shapes: N = ranks in the group.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardlab import comm

from ... import exchanges as plans
from ...exchanges import Plan
from .exchanges import OPERATIONS, execute

Planner = Callable[[int], Plan]  # from the number of ranks
CALL_BYTES = 128  # of the description of a call; longer ones are cut off


def all_reduce(
    x: Tensor,
    group: comm.Group,
    plan: Planner = plans.ring_all_reduce,
    op: str = "sum",
    *,
    check: bool = True,
) -> Tensor:
    """Combine the tensors of all ranks, and return the result on every rank: [...] -> [...].

    op     sum, average, max, min or product
    check  check that all ranks call the same collective; False saves a short message

    Errors: ValueError on every rank, with the calls of all ranks, when they differ; ValueError for
    an average of integers.
    """
    made = plan(group.size())
    combine = _operation(op, x)
    if check:
        agree(f"{made.name} ({op}) of {_shape(x)}", group)
    y = _empty_like(x)
    execute(made, _flat(x), y.view(-1), group, combine)
    return _averaged(y, group, op)


def reduce_scatter(
    x: Tensor,
    group: comm.Group,
    plan: Planner = plans.ring_reduce_scatter,
    op: str = "sum",
    *,
    check: bool = True,
) -> Tensor:
    """Combine over ranks and keep this rank's slice of dim 0: [N*n, ...] -> [n, ...]."""
    made = plan(group.size())
    combine = _operation(op, x)
    mine = _slice(x, group)
    if check:
        agree(f"{made.name} ({op}) of {_shape(x)}", group)
    y = _empty_like(x)                                                # [N*n, ...]
    execute(made, _flat(x), y.view(-1), group, combine)
    return _averaged(y[mine].clone(), group, op)                      # [n, ...]


def all_gather(
    x: Tensor, group: comm.Group, plan: Planner = plans.ring_all_gather, *, check: bool = True
) -> Tensor:
    """Concatenate the tensors of all ranks along dim 0, in rank order: [n, ...] -> [N*n, ...]."""
    made = plan(group.size())
    if check:
        agree(f"{made.name} of {_shape(x)}", group)
    y = x.detach().new_empty(group.size(), *x.shape)                  # [N, n, ...]
    y[group.rank()] = x.detach()
    execute(made, y.view(-1), y.view(-1), group)
    return y.flatten(0, 1)                                            # [N*n, ...]


def all_to_all(
    x: Tensor, group: comm.Group, plan: Planner = plans.pairwise_all_to_all, *, check: bool = True
) -> Tensor:
    """Send slice i of dim 0 to rank i, for every i: [N*n, ...] -> [N*n, ...].

    Slice j of the result came from rank j.
    """
    made = plan(group.size())
    mine = _slice(x, group)
    if check:
        agree(f"{made.name} of {_shape(x)}", group)
    both = x.detach().new_empty(2, *x.shape)  # [2, N*n, ...]: what is sent, and what is received
    both[0] = x.detach()
    both[1, mine] = x.detach()[mine]
    execute(made, both.view(-1), both.view(-1), group)
    return both[1].clone()


# ---- agreement ---------------------------------------------------------------------------------


def agree(call: str, group: comm.Group) -> None:
    """Check that all ranks make the same call, of which they compare the first CALL_BYTES bytes.

    Ranks that bring different lengths would not always hang: a message that is too short leaves
    garbage behind it, and one that is too long ends the receiver. Errors: ValueError on every rank,
    with the calls of all ranks.
    """
    mine = call.encode()[:CALL_BYTES]
    table = torch.zeros(group.size(), CALL_BYTES, dtype=torch.uint8)  # [N, CALL_BYTES]
    table[group.rank(), : len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    table = table.to(comm.device(group))
    flat = table.view(-1)                                             # [N*CALL_BYTES]
    execute(plans.doubling_all_gather(group.size()), flat, flat, group)
    rows = table.cpu().tolist()
    calls = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
    if len(set(calls)) > 1:
        raise ValueError(f"the ranks do not call the same collective:\n  {_by_call(calls)}")


def _by_call(calls: Sequence[str]) -> str:
    """List every call with its ranks, a line each; calls: of every rank, in rank order."""
    ranks: dict[str, list[str]] = {}
    for rank, call in enumerate(calls):
        ranks.setdefault(call, []).append(str(rank))
    lines = []
    for call, callers in ranks.items():
        plural = "s" if len(callers) > 1 else ""
        lines.append(f"rank{plural} {', '.join(callers)}: {call}")
    return "\n  ".join(lines)


# ---- shapes and operations ---------------------------------------------------------------------


def _shape(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _flat(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(-1)


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _slice(x: Tensor, group: comm.Group) -> slice:
    """Return this rank's slice of dim 0. Errors: ValueError if the slices would differ in size."""
    size = group.size()
    rows = x.shape[0]
    if rows % size:
        raise ValueError(f"{rows} rows do not split over {size} ranks; pad to a multiple of {size}")
    length = rows // size
    return slice(group.rank() * length, (group.rank() + 1) * length)


def _operation(op: str, x: Tensor) -> str:
    """Return what combines two tensors: an average is a sum, divided at the end."""
    if op == "average" and not x.is_floating_point():
        raise ValueError(
            f"an average of {x.dtype} would not be an integer; use op='sum', or pass x.float()"
        )
    if op not in ("average", *OPERATIONS):
        raise ValueError(f"unknown operation {op!r}; use one of average, {', '.join(OPERATIONS)}")
    return "sum" if op == "average" else op


def _averaged(y: Tensor, group: comm.Group, op: str) -> Tensor:
    return y.div_(group.size()) if op == "average" else y
