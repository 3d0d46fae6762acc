"""Let ranks act together on files: what fails on one of them fails on all, in the same words."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from shardlab import comm

T = TypeVar("T")


def together(group: comm.Group, act: Callable[[], T]) -> list[T]:
    """Call `act` on every rank, and return what came of it on each, by rank.

    Errors: the OSError or ValueError of the first rank that has one, raised on every rank.
    """
    result: Any = None
    failed: Exception | None = None
    try:
        result = act()
    except OSError as error:
        failed = OSError(error.errno, f"{error.strerror or error} (rank {group.rank()})")
    except ValueError as error:
        failed = ValueError(str(error))
    outcomes = from_all((result, failed), group)
    for _, wrong in outcomes:
        if wrong is not None:
            raise wrong
    return [result for result, _ in outcomes]


def from_all(x: T, group: comm.Group | None) -> list[T]:
    """Return the `x` of every rank, by rank; without a group, this process is the only one."""
    if group is None:
        return [x]
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, x, group=group)
    return found


def apart(group: comm.Group) -> comm.Group:
    """Make a second group of the same ranks, whose messages pass the CPU; all of them call it.

    What one thread sends in it meets nothing of what another thread sends in `group`.
    """
    ranks = dist.get_process_group_ranks(group)
    backend = "gloo" if dist.get_backend(group) == "nccl" else None  # None: as the group
    made: comm.Group = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return made
