"""Exercise: the time of a pipeline's step, whose last stage also has the head, against a clock."""

from collections.abc import Mapping
from typing import Any

from shardlab import schedules
from shardlab.costs.pipeline import timeline

from ..checker import Case, Exercise
from ..shared import formulas


def step_seconds(
    layers_per_stage: int, num_stages: int, layer: float, head: float, num_microbatches: int
) -> float:
    """Play the step on a clock."""
    stages = [layers_per_stage * layer] * num_stages
    stages[-1] += head
    durations = [{"F": seconds / 3, "B": 2 * seconds / 3} for seconds in stages]
    schedule = schedules.make("GPipe", num_stages, num_microbatches)
    return float(timeline.play(schedule, durations).makespan)


def alone(given: Mapping[str, Any]) -> bool:
    """Say whether there is one stage."""
    return bool(given["num_stages"] == 1)


def even(given: Mapping[str, Any]) -> bool:
    """Say whether there are several equal stages."""
    return bool(given["num_stages"] > 1 and given["head"] == 0)


def uneven(given: Mapping[str, Any]) -> bool:
    """Say whether the last of several stages has the head."""
    return bool(given["num_stages"] > 1 and given["head"] > 0)


def case(title: str, *given: float) -> Case:
    """Make a case of these arguments."""
    names = ("layers_per_stage", "num_stages", "layer", "head", "num_microbatches")
    return Case(world_size=1, title=title, given=dict(zip(names, given, strict=True)))


EXERCISE = Exercise(
    name="planner.step_seconds",
    compare="shardlab.costs.step.pipeline.pipeline_seconds",
    points=2,
    pure=True,
    cases=[
        case("one stage", 4, 1, 3.0, 0.0, 2),
        case("one stage with a head", 4, 1, 3.0, 6.0, 2),
        case("one microbatch through two stages", 4, 2, 3.0, 0.0, 1),
        case("eight microbatches", 4, 2, 3.0, 0.0, 8),
        case("two stages, a small head", 4, 2, 3.0, 1.5, 8),
        case("eight stages, a large head", 2, 8, 3.0, 12.0, 32),
    ],
    attempt=formulas.call,
    properties={
        "one stage does all the work": formulas.is_number(step_seconds, alone),
        "equal stages wait for the first and the last microbatch": (
            formulas.is_number(step_seconds, even)
        ),
        "all wait for the slowest stage": formulas.is_number(step_seconds, uneven),
    },
)
