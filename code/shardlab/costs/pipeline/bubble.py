"""Bubbles as the papers on pipeline schedules state them, as formulas.

p stages, m microbatches, v chunks on each stage: the letters of the formulas. F, I and W are the
seconds of one action: a forward, the gradient of the input, the gradients of the weights; a whole
backward is B = I + W. An action is that of one chunk, so with v equal chunks it takes 1/v of its
stage's time. `timeline.play` finds the same by playing the schedule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import Count, Exact, checked


@dataclass(frozen=True)
class _Formula:
    """The seconds that a stage waits in a batch, and where that holds."""

    source: str
    waiting: Callable[[int, int, Any, Any, Any, Any], Any]  # of p, m, F, I, W, and "F&B"
    fewest: Callable[[int], int] = lambda p: 1  # microbatches, for p stages
    asks: str = ""  # of F, I and W, in words
    suits: Callable[[Any, Any, Any], bool] = lambda F, I, W: True  # noqa: E741


_GPIPE, _MEGATRON = "Huang et al. 2019", "Narayanan et al. 2021"
_QI, _ARXIV = "Qi et al. 2023", "https://arxiv.org/abs/"
_SHORT_W: dict[str, Any] = {"asks": "W <= F and W <= I", "suits": lambda F, I, W: min(F, I) >= W}  # noqa: E741
FORMULAS = {
    "naive": _Formula(
        f"one stage at a time: {_GPIPE}, Figure 2b ({_ARXIV}1811.06965)",
        lambda p, m, F, I, W, _: (p - 1) * m * (F + I + W),  # noqa: E741
    ),
    "GPipe": _Formula(
        f"{_GPIPE}, section 2.3 ({_ARXIV}1811.06965)",
        lambda p, m, F, I, W, _: (p - 1) * (F + I + W),  # noqa: E741
    ),
    "1F1B": _Formula(
        f"{_MEGATRON}, section 2.2.1 ({_ARXIV}2104.04473)",
        lambda p, m, F, I, W, _: (p - 1) * (F + I + W),  # noqa: E741
    ),
    "interleaved": _Formula(
        f"{_MEGATRON}, section 2.2.2 ({_ARXIV}2104.04473)",
        lambda p, m, F, I, W, _: (p - 1) * (F + I + W),  # noqa: E741
        fewest=lambda p: p,
    ),
    "ZB-H1": _Formula(
        f"{_QI}, Table 2 ({_ARXIV}2401.10241)",
        lambda p, m, F, I, W, _: (p - 1) * (F + I - W),  # noqa: E741
        fewest=lambda p: p,
        **_SHORT_W,
    ),
    "ZB-H2": _Formula(
        f"{_QI}, Table 2 ({_ARXIV}2401.10241)",
        lambda p, m, F, I, W, _: (p - 1) * (F + I - 2 * W),  # noqa: E741
        fewest=lambda p: 2 * p - 1,
        **_SHORT_W,
    ),
    "ZB-V": _Formula(
        f"{_QI}, section 6 ({_ARXIV}2401.10241)",
        lambda p, m, F, I, W, _: 0,  # noqa: E741
        fewest=lambda p: 2 * p - 1,
        asks="F = I = W",
        suits=lambda F, I, W: F == I == W,  # noqa: E741
    ),
    "DualPipe-V": _Formula(
        "cut from DualPipe by Sea AI Lab (https://hackmd.io/@ufotalent/r1lVXsa9Jg); bubble: "
        "https://github.com/deepseek-ai/DualPipe, with B for the whole backward",
        lambda p, m, F, I, W, FB: (p - 1) * (FB + I - 2 * W),  # noqa: E741
        fewest=lambda p: 2 * p,
        asks="W <= F = I",
        suits=lambda F, I, W: W <= F == I,  # noqa: E741
    ),
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
    return FORMULAS[name].waiting(p, m, F, I, W, durations.get("F&B", F + I + W))


@checked
def condition(name: str, p: Count, m: Count, durations: dict[str, Exact]) -> str:
    """Say what the formula of `waiting` requires and this pipeline does not have.

    "" if it holds.
    """
    if name not in FORMULAS:
        raise ValueError(f"no formula for the schedule {name!r}; known: {', '.join(FORMULAS)}")
    formula = FORMULAS[name]
    least = formula.fewest(p)
    if m < least:
        return f"from {least} microbatches on, and there are {m}"
    return "" if formula.suits(*_of_kinds(durations)) else f"where {formula.asks}"


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
