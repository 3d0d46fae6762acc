"""Exercise: name the rank for which the others wait, from a trace."""

from collections.abc import Mapping
from typing import Any

from shardlab import comm
from shardlab.costs.traces import waiting
from shardlab.trace import Event

from .. import evidence
from ..checker import Case, Exercise, Finding, on_each_rank

# group -> for each of its collectives, when each of its ranks came
Arrivals = Mapping[tuple[int, ...], list[list[float]]]
RUN = 0.1  # s that a collective runs once its last rank has come


def trace_of(arrivals: Arrivals) -> list[Event]:
    """Make a trace in which ranks compute until they come to a collective."""
    events = []
    for group, times in arrivals.items():
        for came in times:
            end = max(came) + RUN
            for rank, start in zip(group, came, strict=True):
                events.append(Event(rank, "communicate", "all_reduce", group, 4, start, end))
                events.append(Event(rank, "compute", "backward", (rank,), 0, start - 0.5, start))
    # In no order of time: those of odd ranks come last to first.
    return sorted(events, key=lambda event: (event.rank, event.end * (-1) ** event.rank))


def straggler(events: list[Event]) -> int:
    """Compute the right answer."""
    cost: dict[int, float] = {}
    in_time = sorted(events, key=lambda event: event.end)
    for (_, last), seconds in waiting.who_waits(in_time).items():
        cost[last] = cost.get(last, 0.0) + seconds
    return max(cost, key=lambda rank: cost[rank])


def attempt(function: Any, group: comm.Group | None, case: Case, rank: int) -> Any:
    """Return the rank that the function finds in the trace, or a description of what came."""
    return evidence.whole(function(trace_of(case.given)))


@on_each_rank
def names_the_rank(case: Case, rank: int, seen: Any) -> Finding | None:
    """Compare the answer with the rank for which the others waited longest."""
    right = straggler(trace_of(case.given))
    if seen == right:
        return None
    groups = [f"group {group} came at {times} s" for group, times in case.given.items()]
    return Finding("; ".join(groups), f"rank {right}", f"{seen}")


def arrivals(ranks: int, *times: list[float]) -> dict[tuple[int, ...], list[list[float]]]:
    """List when all ranks came to each collective, in one group."""
    return {tuple(range(ranks)): list(times)}


EXERCISE = Exercise(
    name="failures.straggler",
    compare="shardlab.costs.traces.waiting.who_waits",
    points=2,
    pure=True,
    cases=[
        Case(world_size=2, title="one collective", given=arrivals(2, [1.0, 3.0])),
        Case(world_size=2, title="two collectives", given=arrivals(2, [1.0, 1.5], [4.0, 2.0])),
        Case(
            world_size=4,
            title="always late",
            given=arrivals(4, [1, 1, 2, 1], [4, 3, 5, 3], [7, 7, 8, 6]),
        ),
        Case(
            world_size=4,
            title="often a little, once a lot",
            given=arrivals(4, [1, 1.5, 1, 1], [2, 2.5, 2, 2], [8, 3, 3, 3]),
        ),
        Case(
            world_size=4,
            title="two groups",
            given={
                (0, 1): [[1.0, 2.0], [5.0, 5.5]],
                (2, 3): [[1.0, 1.0], [4.0, 2.0]],
                (1, 3): [[7.0, 7.5]],
            },
        ),
        Case(
            world_size=4,
            title="three wait, then one",
            given={(0, 1, 2, 3): [[3.0, 1.0, 1.0, 1.0]], (0, 1): [[5.0, 8.0]]},
        ),
    ],
    attempt=attempt,
    properties={"names the rank for which the others wait longest": names_the_rank},
)
