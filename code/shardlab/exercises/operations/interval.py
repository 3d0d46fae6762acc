"""Exercise: how often to save, and what of the time is left for training."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from shardlab import comm
from shardlab.costs.operations import Reliability

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge, describe
from ..shared import formulas

SHORT = 1 / 2000  # of the time between failures: a save below it is short
NEAR, EXACT = 0.02, 1e-3  # relative; a search for the best interval need not be longer
Given = dict[str, float]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return the interval and the goodput, or a description of what came instead."""
    found = function(*case.given.values())
    try:
        interval, goodput = found
    except (TypeError, ValueError):
        return describe(found)
    return evidence.number(interval), evidence.number(goodput)


def kind(given: Given) -> str:
    """Say what decides on the interval: a short save, a long one, or the lag."""
    free = Reliability(between=given["between"], save=given["save"]).best_interval()
    if free < given["lag"]:
        return "lag"
    return "short" if given["save"] <= SHORT * given["between"] else "long"


def is_best(where: str, tolerance: float) -> Judge:
    """Compare the interval with the best one, in the cases of this kind."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        if kind(case.given) != where:
            return None
        right = Reliability(**case.given).best_interval()
        got = observed[0][0] if isinstance(observed[0], tuple) else observed[0]
        if isinstance(got, float) and math.isclose(got, right, rel_tol=tolerance):
            return None
        return Finding(formulas.arguments(case), f"{right:,.6g} s", _show(got, " s"))

    return judge


def has_goodput(case: Case, observed: list[Any]) -> Finding | None:
    """Compare the goodput with that of the interval that was returned, be it the best or not."""
    if not isinstance(observed[0], tuple):
        return Finding(formulas.arguments(case), "an interval and a goodput", observed[0])
    interval, got = observed[0]
    if not isinstance(interval, float) or not 0 < interval < math.inf:
        return Finding(formulas.arguments(case), "an interval above 0 s", _show(interval, " s"))
    right = _goodput(case.given, interval)
    if isinstance(got, float) and math.isclose(got, right, rel_tol=EXACT):
        return None
    given = f"{formulas.arguments(case)}, and an interval of {interval:,.6g} s"
    return Finding(given, f"{right:.4f}", _show(got))


def _goodput(given: Given, interval: float) -> float:
    """Return the goodput; a lag longer than the interval costs what as long a restart costs."""
    restart = given["lag"] + given["restart"]
    run = Reliability(between=given["between"], save=given["save"], restart=restart)
    return run.goodput(interval)


def _show(value: Any, unit: str = "") -> str:
    return f"{value:,.6g}{unit}" if isinstance(value, float) else str(value)


class _Row(NamedTuple):
    title: str
    between: float
    save: float
    lag: float = 0.0
    restart: float = 0.0

    def given(self) -> Given:
        return dict(zip(self._fields[1:], self[1:], strict=True))


ROWS = (
    _Row("a short save", 20_000, 4),
    _Row("a short save and a long restart", 20_000, 10, 0, 900),
    _Row("a short save that is safe later", 80_000, 20, 300, 600),
    _Row("a save that takes longer to be safe than to wait for", 10_000, 2, 500, 0),
    _Row("a lag as long as the time between failures", 2_000, 50, 2_000, 100),
    _Row("a long save", 3_600, 600),
    _Row("a save as long as the time between failures", 600, 600, 60, 120),
)

EXERCISE = Exercise(
    name="operations.interval",
    compare="shardlab.costs.operations.interval.Reliability.best_interval",
    points=2,
    pure=True,
    cases=[Case(1, row.title, row.given()) for row in ROWS],
    attempt=attempt,
    properties={
        "the best interval where saves are short, within 2 %": is_best("short", NEAR),
        "the best interval where saves are long": is_best("long", EXACT),
        "the best interval where a save has to wait for the last": is_best("lag", EXACT),
        "the goodput of the interval": has_goodput,
    },
)
