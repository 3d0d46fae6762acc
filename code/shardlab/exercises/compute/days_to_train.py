"""Exercise: days of training, by 6 P D, or by 8 P D if backward computes every forward again.

Narayanan et al. 2021, equation 4 and section 5.1 (https://arxiv.org/abs/2104.04473).
"""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.compute import time_to_train

from ..checker import Case, Exercise
from ..shared import formulas


def days(
    num_parameters: float, tokens: float, num_chips: int, reached: float, recomputes: bool
) -> float:
    """Compute the right answer."""
    if recomputes:
        return time_to_train.megatron_days(
            num_parameters, tokens, num_chips=num_chips, rate=reached
        )
    return time_to_train.rule_of_thumb_days(
        num_parameters, tokens, num_chips=num_chips, peak=reached, utilisation=1.0
    )


def case(title: str, *numbers: float, recomputes: bool = False) -> Case:
    """Make a case of these arguments."""
    names = ("num_parameters", "tokens", "num_chips", "reached")
    given = {**dict(zip(names, numbers, strict=True)), "recomputes": recomputes}
    return Case(world_size=1, title=title, given=given)


def alone(given: Mapping[str, Any]) -> bool:
    """Say whether one chip trains, without recomputation."""
    return given["num_chips"] == 1 and not given["recomputes"]


def shared(given: Mapping[str, Any]) -> bool:
    """Say whether several chips train, without recomputation."""
    return given["num_chips"] > 1 and not given["recomputes"]


def repeated(given: Mapping[str, Any]) -> bool:
    """Say whether every forward runs twice."""
    return bool(given["recomputes"])


EXERCISE = Exercise(
    name="compute.days_to_train",
    compare="shardlab.costs.compute.time_to_train.megatron_days",
    points=1,
    pure=True,
    cases=[
        case("a day on one chip", 1.44e9, 1e9, 1, 1e14),
        case("two chips", 1.44e9, 1e9, 2, 1e14),
        case("every layer twice", 1.44e9, 1e9, 1, 1e14, recomputes=True),
        case("GPT-3 on 1024 A100s", 175e9, 300e9, 1024, 140e12, recomputes=True),
        case("a trillion parameters on 3072 A100s", 1e12, 450e9, 3072, 163e12, recomputes=True),
    ],
    attempt=formulas.call,
    properties={
        "one chip: forward and backward, in days": formulas.is_number(days, alone),
        "several chips: the same work, shared": formulas.is_number(days, shared),
        "every forward twice: a third more": formulas.is_number(days, repeated),
    },
)
