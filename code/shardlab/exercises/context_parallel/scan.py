"""Exercise: the state with which each rank begins, in one round less than the plain file takes.

`plain.linear_attention.state_before` finds the map of all ranks up to this one by doubling, and
sends it on in a round of its own. Hillis and Steele 1986, https://doi.org/10.1145/7902.7903
"""

import torch
from torch import Tensor

from shardlab import trace

from .. import evidence, tensors
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank
from ..shared.messages import log2, only_messages, takes_at_most
from ..shared.steps import SEND


def inputs(case: Case, rank: int) -> dict[str, Tensor]:
    """Make the map of a rank, different on every one; `case.given` is e."""
    shape = case.given, case.given
    m = evidence.whole_numbers(rank, *shape)
    return {"m": m, "b": evidence.whole_numbers(10 + rank, *shape)}


def state_before(case: Case, rank: int) -> Tensor:
    """Let each rank before this one change the state in turn."""
    state = torch.zeros(case.given, case.given).double()
    for each in range(case.members(rank).start, rank):
        m, b = inputs(case, each).values()
        state = m @ state + b
    return state


def map_bytes(case: Case) -> int:
    """Return the bytes of m and b."""
    m, b = inputs(case, 0).values()
    return m.nbytes + b.nbytes


@Dependent
@on_each_rank
def gets_one_map_at_a_time(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for no message larger than one map, and for one to each rank but the first."""
    arrived = [event.nbytes for event in trace.communication(seen.events) if event.op != SEND]
    is_first = rank == case.members(rank).start
    if max(arrived, default=0) <= map_bytes(case) and (arrived or is_first):
        return None
    expected = f"messages of at most {map_bytes(case)} bytes, m and b"
    got = f"{max(arrived, default=0)} bytes at once on rank {rank}"
    return Finding(case.title, expected, got, "join two maps to one before you send them")


@Dependent
@on_each_rank
def sends_few_maps(case: Case, rank: int, seen: evidence.Seen) -> Finding | None:
    """Ask for at most one map in each step, and for a state from each rank but the last."""
    ranks = len(case.members(rank))
    most = log2(ranks) * map_bytes(case)
    least = 0 if rank + 1 == case.members(rank).stop else map_bytes(case) / 2
    sent = sum(map(trace.wire_bytes, seen.events))
    if least <= sent <= most:
        return None
    bound = f"at most {most:.0f}" if sent > most else f"at least {least:.0f}"
    shown = evidence.show_sent(rank, seen.events)
    return Finding(f"{case.title}, {ranks} ranks", f"{bound} bytes sent by a rank", shown)


TENSORS = tensors.Comparison(
    inputs=inputs,
    reference=lambda case, rank: {"state": state_before(case, rank)},
    outputs=("state",),
)
EXERCISE = Exercise(
    name="context_parallel.scan",
    compare="shardlab.plain.linear_attention.state_before",
    points=3,
    cases=[
        Case(world_size=1, title="e = 2", given=2),
        Case(world_size=2, title="e = 2", given=2),
        Case(world_size=3, title="e = 2", given=2),
        Case(world_size=4, title="e = 3", given=3),
        Case(world_size=4, title="e = 2", given=2, group_size=2),
    ],
    attempt=TENSORS.attempt,
    properties={
        "every rank has the state with which it begins": TENSORS.has("state"),
        "the arguments stay what they were": evidence.leaves_arguments,
        "ranks send messages to one rank at a time": only_messages,
        "it takes ceil(log2(n)) steps": takes_at_most(log2, "ceil(log2(n))"),
        "a rank gets one map at a time": gets_one_map_at_a_time,
        "a rank sends at most one map in each step": sends_few_maps,
    },
)
