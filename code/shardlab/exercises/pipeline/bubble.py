"""Exercise: the bubble, by both definitions."""

from collections.abc import Callable
from typing import Any

from shardlab import schedules
from shardlab.costs.pipeline import timeline
from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding, Judge

NEAR = 1e-9

STARTER = '''\
def my_bubble(num_stages, num_microbatches, num_chunks):
    """How long a stage waits: as a share of the time it computes, and of all time.

    Interleaved 1F1B, num_chunks equal chunks on each stage; 1 chunk is plain 1F1B.
    """
    return 0.0, 0.0  # no stage ever waits: mend it
'''


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    p, m, v = case.given
    answer = function(p, m, v)
    try:
        of_ideal, of_total = (float(each) for each in answer)
    except (TypeError, ValueError):
        return f"{answer!r:.60}, a {type(answer).__name__}"
    return of_ideal, of_total


def are_two_numbers(case: Case, seen: list[Any]) -> Finding | None:
    return Finding(_given(case), "two numbers", seen[0]) if isinstance(seen[0], str) else None


def is_played(place: int, of: str) -> Judge:
    """Judges one of the two shares by a schedule that is played on a clock."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        p, m, v = case.given
        run = timeline.play(schedules.make("interleaved", p, m, v), {"F": 1, "B": 2})
        expected = (run.bubble_of_ideal, run.bubble_of_total)[place]
        got = float("nan") if isinstance(seen[0], str) else seen[0][place]
        if abs(got - expected) < NEAR:
            return None
        waits = f"a stage waits {run.waiting[0]} s and computes {run.busy[0]} s"
        return Finding(f"{_given(case)}: {waits}", f"{expected:.4g} of {of}", f"{got:.4g}")

    return judge


def _given(case: Case) -> str:
    p, m, v = case.given
    return f"num_stages={p}, num_microbatches={m}, num_chunks={v}"


PIPELINES = [(1, 4, 1), (2, 2, 1), (2, 8, 1), (2, 4, 2), (3, 9, 1), (4, 8, 1), (4, 8, 2), (4, 12, 4)]

EXERCISE = Exercise(
    name="pipeline.bubble",
    prompt="The bubble of (interleaved) 1F1B, as a share of the time that a stage computes and as a share of all time.",
    starter=STARTER,
    hint="A stage waits until the first microbatch has come down and until the last one has gone back up: num_stages - "
    "1 forwards and as many backwards, of one chunk. It computes num_microbatches of both, on each chunk.",
    points=1,
    pure=True,
    cases=[
        Case(world_size=p, title=f"{m} microbatches, {v} chunk{'s' * (v > 1)}", given=(p, m, v))
        for p, m, v in PIPELINES
    ],
    attempt=attempt,
    properties={
        "returns two numbers": are_two_numbers,
        "the first is waiting over computing": is_played(0, "the time it computes"),
        "the second is waiting over all time": is_played(1, "all time"),
    },
)
