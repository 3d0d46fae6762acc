"""Bubbles as the papers on pipeline schedules state them, as formulas.

p stages, m microbatches, v chunks on each stage: the letters of the formulas. F, I and W are the
seconds of one action: a forward, the gradient of the input, the gradients of the weights; a whole
backward is B = I + W. An action is that of one chunk, so with v equal chunks it takes 1/v of its
stage's time. `timeline.play` finds the same by playing the schedule.
"""

from collections.abc import Mapping
from typing import Any

from shardlab.files.arguments import Count, Exact, checked

SOURCES = {
    "naive": "one stage at a time: Huang et al. 2019, Figure 2b (https://arxiv.org/abs/1811.06965)",
    "GPipe": "Huang et al. 2019, section 2.3 (https://arxiv.org/abs/1811.06965)",
    "1F1B": "Narayanan et al. 2021, section 2.2.1 (https://arxiv.org/abs/2104.04473)",
    "interleaved": "Narayanan et al. 2021, section 2.2.2 (https://arxiv.org/abs/2104.04473)",
    "ZB-H1": "Qi et al. 2023, Table 2 (https://arxiv.org/abs/2401.10241)",
    "ZB-H2": "Qi et al. 2023, Table 2 (https://arxiv.org/abs/2401.10241)",
    "ZB-V": "Qi et al. 2023, section 6 (https://arxiv.org/abs/2401.10241)",
    "DualPipe-V": "cut from DualPipe by Sea AI Lab (https://hackmd.io/@ufotalent/r1lVXsa9Jg); bubble: "
    "https://github.com/deepseek-ai/DualPipe, with B for the whole backward",
}


@checked
def waiting(name: str, p: Count, m: Count, durations: dict[str, Exact]) -> Any:
    """Return the seconds that a stage waits in one batch.

    For ZB-H2 and ZB-V it is an upper bound on the waiting between a stage's first and last action.
    durations: of F, I and W; and of "F&B", a forward and a backward at the same time, if that is
    not F + B. Errors: ValueError where the formula does not hold, see `condition`.
    """
    if why := condition(name, p, m, durations):
        raise ValueError(f"the formula of {name} holds {why}; play the schedule instead")
    F, I, W = _of_kinds(durations)  # noqa: E741
    formulas = {
        "naive": (p - 1) * m * (F + I + W),
        "GPipe": (p - 1) * (F + I + W),
        "1F1B": (p - 1) * (F + I + W),
        "interleaved": (p - 1) * (F + I + W),
        "ZB-H1": (p - 1) * (F + I - W),
        "ZB-H2": (p - 1) * (F + I - 2 * W),
        "ZB-V": 0,
        "DualPipe-V": (p - 1) * (durations.get("F&B", F + I + W) + I - 2 * W),
    }
    return formulas[name]


@checked
def condition(name: str, p: Count, m: Count, durations: dict[str, Exact]) -> str:
    """Say what the formula of `waiting` requires and this pipeline does not have.

    "" if it holds.
    """
    if name not in SOURCES:
        raise ValueError(f"no formula for the schedule {name!r}; known: {', '.join(SOURCES)}")
    F, I, W = _of_kinds(durations)  # noqa: E741
    fewest = {
        "interleaved": p,
        "ZB-H1": p,
        "ZB-H2": 2 * p - 1,
        "ZB-V": 2 * p - 1,
        "DualPipe-V": 2 * p,
    }
    least = fewest.get(name, 1)
    asks = {
        "ZB-H1": ("W <= F and W <= I", min(F, I) >= W),
        "ZB-H2": ("W <= F and W <= I", min(F, I) >= W),
        "ZB-V": ("F = I = W", F == I == W),
        "DualPipe-V": ("W <= F = I", W <= F == I),
    }
    text, holds = asks.get(name, ("", True))
    if m < least:
        return f"from {least} microbatches on, and there are {m}"
    return "" if holds else f"where {text}"


@checked
def of_ideal(waiting: Exact, m: Count, v: Count, durations: dict[str, Exact]) -> Any:
    """Return the bubble as a share of a stage's computing time: (p - 1) / m for GPipe."""
    return waiting / (m * v * sum(_of_kinds(durations)))


@checked
def of_total(waiting: Exact, m: Count, v: Count, durations: dict[str, Exact]) -> Any:
    """Return the bubble as a share of all time: (p - 1) / (m + p - 1) for GPipe."""
    return waiting / (waiting + m * v * sum(_of_kinds(durations)))


def _of_kinds(durations: Mapping[str, Any]) -> list[Any]:
    """Return the durations of F, I and W. Errors: ValueError where one is missing."""
    if missing := [kind for kind in "FIW" if kind not in durations]:
        raise ValueError(f"durations={durations} must have F, I and W; add {', '.join(missing)}")
    return [durations[kind] for kind in "FIW"]
