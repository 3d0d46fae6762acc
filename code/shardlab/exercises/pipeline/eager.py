"""Exercise: 1F1B that runs further ahead, because messages take time, judged on a clock.

`plain.pipeline.one_forward_one_backward` is as fast as GPipe while messages are free. Where a
message takes half as long as a forward and a backward, a stage that keeps 1 + 2 * after
microbatches, for `after` stages after it, never waits in the middle; no smaller number is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm, schedules
from shardlab.costs import units
from shardlab.costs.pipeline import timeline
from shardlab.schedules import Action, Schedule

from ..checker import Case, Dependent, Exercise, Finding

FORWARD = 2  # seconds
BACKWARD = 4  # seconds
MESSAGE = 3  # seconds: half of a forward and a backward
SHOWN = 12  # actions that a report lists
NEAR = 1e-6  # of shares
SIZES = (2, 1, 3)  # samples of the microbatches, in turn


class RecordingStage:
    """A stage that records its schedule, with the names of `plain.pipeline.Stage`."""

    def __init__(self, before: int, after: int) -> None:
        self.before = before
        self.after = after
        self.kept: list[int] = []  # microbatches between their forward and their backward
        self.actions: list[Action] = []
        self.shares: dict[int, float] = {}  # of each microbatch

    def forward(self, inputs: Tensor, targets: Tensor, share: float) -> None:
        """Record a forward; every number of inputs and targets is that of the microbatch."""
        number = int(inputs.flatten()[0])
        if number != int(targets.flatten()[0]):
            raise ValueError("these targets belong to other inputs; pass both of one microbatch")
        self.kept.append(number)
        self.actions.append(Action("F", number))
        self.shares[number] = float(share)

    def backward(self) -> None:
        """Record the backward of the oldest microbatch that is kept."""
        if not self.kept:
            raise ValueError("no microbatch is kept; call stage.forward before stage.backward")
        self.actions.append(Action("B", self.kept.pop(0)))


@dataclass(frozen=True)
class Played:
    """What one stage did."""

    actions: list[Action]
    shares: dict[int, float]


def sizes(case: Case) -> list[int]:
    """Return the samples of each microbatch; case.given: how many microbatches there are."""
    return [SIZES[number % len(SIZES)] for number in range(case.given)]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> list[Played]:
    """Let the function run on every stage of the pipeline, one after the other."""
    played = []
    for before in range(case.world_size):
        numbers = enumerate(sizes(case))
        whole = [torch.full((size, 2), number) for number, size in numbers]
        stage = RecordingStage(before, case.world_size - 1 - before)
        function(stage, [(x, x.clone()) for x in whole], sum(sizes(case)))
        played.append(Played(stage.actions, stage.shares))
    return played


def counts_samples(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that each loss is multiplied by its microbatch's share of the samples."""
    for before, played in enumerate(observed[0]):
        for number, size in enumerate(sizes(case)):
            right = size / sum(sizes(case))
            got = played.shares.get(number)
            if got is None or not abs(got - right) <= NEAR:
                given = f"stage {before}, {size} of {sum(sizes(case))} samples in it"
                expected = f"share {right:.4g} for microbatch {number}"
                return Finding(given, expected, "no forward" if got is None else f"{got:.4g}")
    return None


def can_run(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that every microbatch goes forward and back, and no stages wait for each other."""
    found = schedules.problems(_schedule(case, observed))
    return Finding(_given(case), "an order that can run", "; ".join(found[:3])) if found else None


@Dependent
def is_fast(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that no stage waits except while the pipeline fills and drains."""
    schedule = _schedule(case, observed)
    if schedules.problems(schedule):
        return None
    seconds = FORWARD + BACKWARD
    least = case.given * seconds + (case.world_size - 1) * (seconds + 2 * MESSAGE)
    durations = {"F": FORWARD, "B": BACKWARD}
    taken = timeline.play(schedule, durations, latency=MESSAGE).makespan
    if taken <= least:
        return None
    given = f"{_given(case)}, F takes {FORWARD} s, B {BACKWARD} s, a message {MESSAGE} s"
    return Finding(given, f"done in {least} s", f"{taken} s; {_brief(schedule, 0)}")


@Dependent
def keeps_little(case: Case, observed: list[Any]) -> Finding | None:
    """Ask that a stage keeps no more microbatches than the messages cost."""
    schedule = _schedule(case, observed)
    if schedules.problems(schedule):
        return None
    for stage, most in enumerate(timeline.play(schedule, latency=MESSAGE).peaks()):
        allowed = min(1 + 2 * (case.world_size - 1 - stage), case.given)
        if most > allowed:
            expected = f"at most {units.counted(allowed, 'microbatch')} kept on stage {stage}"
            return Finding(_given(case), expected, f"{most}; {_brief(schedule, stage)}")
    return None


def _schedule(case: Case, observed: list[Any]) -> Schedule:
    orders = tuple(tuple(played.actions) for played in observed[0])
    return Schedule(
        name="yours",
        orders=orders,
        num_microbatches=case.given,
        parts=schedules.loop(case.world_size),
    )


def _brief(schedule: Schedule, stage: int) -> str:
    order = schedule.orders[stage]
    more = " ..." if len(order) > SHOWN else ""
    return f"stage {stage}: {' '.join(map(str, order[:SHOWN]))}{more}"


def _given(case: Case) -> str:
    return f"{units.counted(case.world_size, 'stage')}, {units.counted(case.given, 'microbatch')}"


PIPELINES = [(1, 3), (2, 1), (2, 2), (2, 4), (3, 2), (3, 6), (4, 3), (4, 8)]
EXERCISE = Exercise(
    name="pipeline.eager",
    compare="shardlab.plain.pipeline.one_forward_one_backward",
    points=3,
    pure=True,
    cases=[
        Case(world_size=ranks, title=f"{m} microbatch{'es' * (m > 1)}", given=m)
        for ranks, m in PIPELINES
    ],
    attempt=attempt,
    properties={
        "each loss counts by its samples": counts_samples,
        "the validator finds nothing wrong": can_run,
        "stages wait only while the pipeline fills and drains": is_fast,
        "a stage keeps as few microbatches as it can": keeps_little,
    },
)
