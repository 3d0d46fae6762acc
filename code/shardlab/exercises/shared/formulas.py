"""What exercises that ask for a formula share: the function is called once, and returns numbers."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .. import evidence
from ..checker import Case, Finding, Judge

ROUNDING = 1e-6  # relative; a few operations in fp32 round less
LARGE = 10**6  # a report writes numbers from here on with an exponent


def call(function: Callable[..., Any], group: Any, case: Case, rank: int) -> Any:
    """Attempt a pure exercise: pass the case's arguments, return a number, or numbers by name."""
    result = function(*case.given.values())
    if isinstance(result, Mapping):
        return {str(name): evidence.number(value) for name, value in result.items()}
    return evidence.number(result)


def arguments(case: Case) -> str:
    """Show what the function was given: batch=2, ..."""
    return ", ".join(f"{name}={_brief(value)}" for name, value in case.given.items())


def _brief(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number and abs(value) >= LARGE else repr(value)


def is_number(
    expected: Callable[..., float],
    where: Callable[[Mapping[str, Any]], bool] = lambda given: True,
) -> Judge:
    """Compare the result with that of `expected`, in the cases that `where` selects."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        if not where(case.given):
            return None
        right = expected(*case.given.values())
        got = observed[0]
        if isinstance(got, float) and math.isclose(got, right, rel_tol=ROUNDING):
            return None
        return Finding(arguments(case), _show_number(right), _show_number(got))

    return judge


def is_part(name: str, expected: Callable[..., Mapping[str, float]]) -> Judge:
    """Compare the part of this name with that of `expected`."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        right = float(expected(*case.given.values())[name])
        got = observed[0].get(name) if isinstance(observed[0], dict) else None
        if isinstance(got, float) and math.isclose(got, right, rel_tol=ROUNDING):
            return None
        shown = f"{name}: {_show_number(got)}"
        return Finding(arguments(case), f"{name}: {_show_number(right)}", shown)

    return judge


def has_parts(*names: str) -> Judge:
    """Ask for a dict of numbers with exactly these names."""

    def judge(case: Case, observed: list[Any]) -> Finding | None:
        parts = observed[0] if isinstance(observed[0], dict) else {}
        if set(parts) == set(names) and all(isinstance(each, float) for each in parts.values()):
            return None
        expected = f"a dict of numbers with the keys {', '.join(names)}"
        return Finding(arguments(case), expected, f"{observed[0]}")

    return judge


def _show_number(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
