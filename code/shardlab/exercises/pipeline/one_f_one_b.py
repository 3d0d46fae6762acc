"""Exercise: the schedule 1F1B, judged by validator, clock and memory."""

from collections.abc import Callable
from typing import Any

from shardlab import schedules
from shardlab.costs.pipeline import timeline
from shardlab.ranks import comm
from shardlab.schedules import Action, Schedule

from ..checker import Case, Exercise, Finding

FORWARD, BACKWARD = 1, 2  # seconds
SHOWN = 12  # actions that a report lists

STARTER = '''\
from shardlab.schedules import Action

def my_one_f_one_b(stage, num_stages, num_microbatches):
    """What this stage does, in order: a list of Action("F", 0), Action("B", 0) ..."""
    forwards = [Action("F", m) for m in range(num_microbatches)]
    backwards = [Action("B", m) for m in range(num_microbatches)]
    return forwards + backwards  # that is GPipe: mend it
'''


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> list[Any]:
    """The order of each stage: actions, or in words what was returned instead."""
    return [_actions(function(stage, case.world_size, case.given)) for stage in range(case.world_size)]


def _actions(answer: Any) -> list[Action] | str:
    try:
        return [Action(str(kind), int(microbatch)) for kind, microbatch, *_ in answer]
    except (TypeError, ValueError):
        return f"{answer!r:.60}, a {type(answer).__name__}"


def are_actions(case: Case, seen: list[Any]) -> Finding | None:
    for stage, order in enumerate(seen[0]):
        if isinstance(order, str):
            return Finding(f"stage={stage}, {_given(case)}", 'a list of Action("F", 0), ...', order)
    return None


def can_run(case: Case, seen: list[Any]) -> Finding | None:
    found = schedules.problems(_schedule(case, seen))
    return Finding(_given(case), "an order that can run", "; ".join(found[:3])) if found else None


def is_fast(case: Case, seen: list[Any]) -> Finding | None:
    schedule, least = _schedule(case, seen), (FORWARD + BACKWARD) * (case.given + case.world_size - 1)
    if schedules.problems(schedule):
        return None
    taken = timeline.play(schedule, {"F": FORWARD, "B": BACKWARD}).makespan
    if taken <= least:
        return None
    given = f"{_given(case)}, F of {FORWARD} s, B of {BACKWARD} s"
    return Finding(given, f"done in {least} s", f"{taken} s; {_brief(schedule, 0)}")


def holds_little(case: Case, seen: list[Any]) -> Finding | None:
    schedule = _schedule(case, seen)
    if schedules.problems(schedule):
        return None
    for stage, most in enumerate(timeline.play(schedule).peaks()):
        allowed = min(case.world_size - stage, case.given)
        if most > allowed:
            given = f"stage={stage}, {_given(case)}"
            return Finding(given, f"at most {allowed} held", f"{most}: {_brief(schedule, stage)}")
    return None


def _schedule(case: Case, seen: list[Any]) -> Schedule:
    orders = tuple(() if isinstance(order, str) else tuple(order) for order in seen[0])
    parts = schedules.loop(case.world_size)
    return Schedule(name="yours", orders=orders, num_microbatches=case.given, parts=parts)


def _brief(schedule: Schedule, stage: int) -> str:
    order = schedule.orders[stage]
    return f"stage {stage}: {' '.join(map(str, order[:SHOWN]))}{' ...' * (len(order) > SHOWN)}"


def _given(case: Case) -> str:
    return f"num_stages={case.world_size}, num_microbatches={case.given}"


PIPELINES = [(1, 3), (2, 1), (2, 2), (2, 5), (3, 2), (3, 6), (4, 2), (4, 8)]

EXERCISE = Exercise(
    name="pipeline.one_f_one_b",
    prompt="Write 1F1B: as fast as GPipe, but stage s of p holds the activations of p - s microbatches at most.",
    starter=STARTER,
    hint="Stage s may run num_stages - 1 - s forwards ahead. After these, one forward and one backward in turn, and at "
    "the end the backwards that are left. With few microbatches there may be no forward left to alternate with.",
    points=3,
    pure=True,
    cases=[Case(world_size=p, title=f"{m} microbatch{'es' * (m > 1)}", given=m) for p, m in PIPELINES],
    attempt=attempt,
    properties={
        "returns actions": are_actions,
        "the validator finds nothing wrong": can_run,
        "the batch takes no longer than with GPipe": is_fast,
        "a stage holds as few microbatches as it can": holds_little,
    },
)
