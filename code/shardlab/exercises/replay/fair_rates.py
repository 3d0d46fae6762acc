"""Exercise: the max-min fair rates of messages that share links.

Bertsekas and Gallager 1992, Data Networks, section 6.5.2.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from shardlab.costs.traces.sharing import Flow, Wires

from ..checker import Case, Exercise, Finding, describe, on_each_rank
from ..shared import formulas


def fair_rates(capacities: Mapping[str, float], paths: list[list[str]]) -> list[float]:
    """Compute the right answer."""
    number = {link: index for index, link in enumerate(capacities)}
    wires = Wires(list(capacities.values()))
    flows = []
    for index, path in enumerate(paths):
        crossed = [(number[link], 1.0) for link in path]
        flows.append(Flow(index, crossed, 1.0, 0.0))
        wires.add(flows[-1])
    wires.settle(0.0)
    return [flow.rate for flow in flows]


def attempt(function: Callable[..., Any], group: Any, case: Case, rank: int) -> list[float] | str:
    """Return the rates, or a description of what came instead."""
    paths = [[*path] for path in case.given["paths"]]
    result = function({**case.given["capacities"]}, paths)
    try:
        return [float(rate) for rate in result]
    except (TypeError, ValueError):
        return describe(result)


@on_each_rank
def rates_are_fair(case: Case, rank: int, seen: Any) -> Finding | None:
    """Compare the rates with the fair ones."""
    right = fair_rates(**case.given)
    if isinstance(seen, list) and len(seen) == len(right) and all(map(_close, seen, right)):
        return None
    return Finding(formulas.arguments(case), _show(right), _show(seen))


@on_each_rank
def no_link_is_overfull(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask that no link carries more than its capacity."""
    if not isinstance(seen, list):
        return Finding(formulas.arguments(case), "a rate for each message", seen)
    pairs = list(zip(seen, case.given["paths"], strict=False))
    for link, capacity in case.given["capacities"].items():
        load = sum(rate for rate, path in pairs if link in path)
        if load > capacity * (1 + formulas.ROUNDING):
            return Finding(formulas.arguments(case), f"at most {capacity:g} on {link}", f"{load:g}")
    return None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=formulas.ROUNDING)


def _show(rates: list[float] | str) -> str:
    return rates if isinstance(rates, str) else f"[{', '.join(f'{rate:g}' for rate in rates)}]"


def case(title: str, capacities: Mapping[str, float], *paths: str) -> Case:
    """Make a case; a link's name is one letter, so that a path is a word."""
    given = {"capacities": capacities, "paths": [list(path) for path in paths]}
    return Case(world_size=1, title=title, given=given)


EXERCISE = Exercise(
    name="replay.fair_rates",
    compare="shardlab.costs.traces.sharing.Wires.settle",
    points=4,
    pure=True,
    cases=[
        case("one message", {"a": 6.0}, "a"),
        case("two on one link", {"a": 6.0}, "a", "a"),
        case("a narrow second link", {"a": 6.0, "b": 2.0}, "ab"),
        case("a message that cannot use its share", {"a": 6.0, "b": 1.0}, "a", "ab"),
        case("three links in a row", {"a": 6.0, "b": 4.0, "c": 9.0}, "ab", "bc", "c", "a"),
        case(
            "one link after the other fills",
            {"a": 1.0, "b": 3.0, "c": 9.0, "d": 27.0},
            "a",
            "ab",
            "bc",
            "cd",
            "d",
        ),
        case("a link that two fill later", {"a": 9.0, "b": 16.0, "c": 1.0}, "ab", "ac", "b"),
        case("a card for four", {"a": 30.0, "b": 30.0, "n": 12.0}, "an", "an", "bn", "bn", "ab"),
    ],
    attempt=attempt,
    properties={
        "no link is overfull": no_link_is_overfull,
        "no message could get more fairly": rates_are_fair,
    },
)
