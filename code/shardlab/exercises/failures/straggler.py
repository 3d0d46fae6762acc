"""Exercise: the rank for which the others wait, from a trace."""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.traces import waiting
from shardlab.ranks import comm
from shardlab.trace import Event

from ..checker import Case, Exercise, Finding

STARTER = '''\
def my_straggler(events):
    """The rank for which the others waited longest, over the whole trace.

    events: of all ranks, in any order; each has rank, kind, op, group, start and
    end (in seconds). Of kind "communicate" there are collectives only. The k-th
    of a group is one collective on all its ranks: all wait for the last to start.
    """
    longest = max(events, key=lambda event: event.end - event.start)
    return longest.rank  # the rank with the longest all-reduce waits: mend it
'''

Arrivals = Mapping[tuple[int, ...], list[list[float]]]  # group -> for each of its collectives when its ranks came


def trace_of(arrivals: Arrivals) -> list[Event]:
    """A trace in which each collective ends 0.1 s after its last rank came; ranks compute until they come."""
    events = []
    for group, times in arrivals.items():
        for came in times:
            for rank, start in zip(group, came, strict=True):
                end = max(came) + 0.1
                events.append(Event(rank, "communicate", "all_reduce", group, 4, start, end))
                events.append(Event(rank, "compute", "backward", (rank,), 0, start - 0.5, start))
    return sorted(events, key=lambda event: (event.end, -event.rank))  # not by start


def straggler(events: list[Event]) -> int:
    """What should come out."""
    cost: dict[int, float] = {}
    for (_, last), seconds in waiting.who_waits(events).items():
        cost[last] = cost.get(last, 0.0) + seconds
    return max(cost, key=lambda rank: cost[rank])


def attempt(function: Any, group: comm.Group | None, case: Case, rank: int) -> Any:
    return function(trace_of(case.given))


def names_the_rank(case: Case, seen: list[Any]) -> Finding | None:
    right, got = straggler(trace_of(case.given)), seen[0]
    if type(got) is int and got == right:
        return None
    told = "; ".join(f"group {group} came at {times} s" for group, times in case.given.items())
    return Finding(told, f"rank {right}", f"{got!r:.60}")


def arrivals(ranks: int, *times: list[float]) -> dict[tuple[int, ...], list[list[float]]]:
    return {tuple(range(ranks)): list(times)}


EXERCISE = Exercise(
    name="failures.straggler",
    prompt="Name the rank for which the others waited longest, from the events of all ranks.",
    starter=STARTER,
    hint=(
        "Sort each rank's communications of each group by their start: equal places are one collective. Each of its "
        "ranks waits from its own start to the latest start; add that up under the rank that started last."
    ),
    points=2,
    pure=True,
    cases=[
        Case(world_size=2, title="one collective", given=arrivals(2, [1.0, 3.0])),
        Case(world_size=2, title="two collectives", given=arrivals(2, [1.0, 1.5], [4.0, 2.0])),
        Case(world_size=4, title="always late", given=arrivals(4, [1, 1, 2, 1], [4, 3, 5, 3], [7, 7, 8, 6])),
        Case(
            world_size=4,
            title="often a little, once a lot",
            given=arrivals(4, [1, 1.5, 1, 1], [2, 2.5, 2, 2], [8, 3, 3, 3]),
        ),
        Case(
            world_size=4,
            title="two groups",
            given={(0, 1): [[1.0, 2.0], [5.0, 5.5]], (2, 3): [[1.0, 1.0], [4.0, 2.0]], (1, 3): [[7.0, 7.5]]},
        ),
    ],
    attempt=attempt,
    properties={"names the rank for which the others wait longest": names_the_rank},
)
