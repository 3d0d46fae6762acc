"""Exercise: the bubble, by both of its definitions, against a schedule on a clock."""

from collections.abc import Callable
from typing import Any

from shardlab import comm, schedules
from shardlab.costs import units
from shardlab.costs.pipeline import timeline

from ..checker import Case, Exercise, Finding, Judge, describe

NEAR = 1e-6


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return two numbers, or a description of what came instead."""
    answer = function(*case.given)
    try:
        of_ideal, of_total = (float(each) for each in answer)
    except (TypeError, ValueError):
        return describe(answer)
    return of_ideal, of_total


def are_two_numbers(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for two numbers."""
    if isinstance(observed[0], str):
        return Finding(_given(case), "two numbers", observed[0])
    return None


def is_played(place: int, of: str) -> Judge:
    """Compare one of the two numbers with that of a schedule that is played on a clock."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        run = timeline.play(schedules.make("interleaved", *case.given), {"F": 1, "B": 2})
        expected = (run.bubble_of_ideal, run.bubble_of_total)[place]
        got = float("nan") if isinstance(observed[0], str) else observed[0][place]
        if abs(got - expected) < NEAR:
            return None
        waits = f"a stage waits {run.waiting[0]} s and computes {run.busy[0]} s"
        return Finding(f"{_given(case)}: {waits}", f"{expected:.4g} of {of}", f"{got:.4g}")

    return judge


def _given(case: Case) -> str:
    stages, microbatches, chunks = case.given
    return f"num_stages={stages}, num_microbatches={microbatches}, num_chunks={chunks}"


def _case(stages: int, microbatches: int, chunks: int) -> Case:
    title = f"{units.counted(microbatches, 'microbatch')}, {units.counted(chunks, 'chunk')}"
    return Case(world_size=stages, title=title, given=(stages, microbatches, chunks))


EXERCISE = Exercise(
    name="pipeline.bubble",
    compare="shardlab.costs.pipeline.bubble",
    points=1,
    pure=True,
    cases=[
        *(_case(1, 4, 1), _case(2, 2, 1), _case(2, 8, 1), _case(2, 4, 2)),
        *(_case(3, 9, 1), _case(4, 8, 1), _case(4, 8, 2), _case(4, 12, 4)),
    ],
    attempt=attempt,
    properties={
        "returns two numbers": are_two_numbers,
        "the first is waiting over computing": is_played(0, "the time it computes"),
        "the second is waiting over all time": is_played(1, "all time"),
    },
)
