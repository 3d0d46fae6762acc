"""Exercise: who gets how much of a shared link.

Bertsekas and Gallager 1992, Data Networks, section 6.5.2.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from shardlab.costs.traces.sharing import Flow, Wires

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge

STARTER = '''\
def my_fair_rates(capacities, paths):
    """The max-min fair rate of each message: a list of bytes per second.

    capacities: link -> bytes per second. paths: for each message its links.
    Raise all rates together until a link is full; whoever crosses it stays at
    that rate; go on with the others.
    """
    users = {link: sum(link in path for path in paths) for link in capacities}
    # too little for some: mend it
    return [min(capacities[link] / users[link] for link in path) for path in paths]
'''


def fair_rates(capacities: Mapping[str, float], paths: list[list[str]]) -> list[float]:
    number = {link: index for index, link in enumerate(capacities)}
    wires = Wires(list(capacities.values()))
    flows = [Flow(index, [(number[link], 1.0) for link in path], 1.0, 0.0) for index, path in enumerate(paths)]
    for flow in flows:
        wires.add(flow)
    wires.settle(0.0)
    return [flow.rate for flow in flows]


def attempt(function: Callable[..., Any], group: Any, case: Case, rank: int) -> list[float] | str:
    """The rates as numbers, or in words what was returned instead."""
    result = function({**case.given["capacities"]}, [[*path] for path in case.given["paths"]])
    try:
        return [float(rate) for rate in result]
    except (TypeError, ValueError):
        return f"{result!r:.60}, a {type(result).__name__}"


def rates_are_fair(case: Case, seen: list[Any]) -> Finding | None:
    right, got = fair_rates(**case.given), seen[0]
    if isinstance(got, list) and len(got) == len(right) and all(map(_close, got, right)):
        return None
    return Finding(evidence.arguments(case), _told(right), _told(got))


def no_link_is_overfull(case: Case, seen: list[Any]) -> Finding | None:
    rates = seen[0] if isinstance(seen[0], list) else []
    for link, capacity in case.given["capacities"].items():
        load = sum(rate for rate, path in zip(rates, case.given["paths"], strict=False) if link in path)
        if load > capacity * (1 + evidence.ROUNDING):
            return Finding(evidence.arguments(case), f"at most {capacity:g} on {link}", f"{load:g}")
    return None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=evidence.ROUNDING)


def _told(rates: list[float] | str) -> str:
    return rates if isinstance(rates, str) else f"[{', '.join(f'{rate:g}' for rate in rates)}]"


def case(title: str, capacities: Mapping[str, float], *paths: str) -> Case:
    """Links have names of one letter, so that a path is a word."""
    return Case(world_size=1, title=title, given={"capacities": capacities, "paths": [list(path) for path in paths]})


JUDGES: dict[str, Judge] = {"no link is overfull": no_link_is_overfull, "nobody could get more fairly": rates_are_fair}

EXERCISE = Exercise(
    name="interconnects.fair_rates",
    prompt="Share links fairly between messages: what one cannot use, the others get.",
    starter=STARTER,
    hint=(
        "The link with the smallest capacity per message that is still rising fills first. Fix its messages at that "
        "rate, take what they use from all their links, and begin again with the rest."
    ),
    points=4,
    pure=True,
    cases=[
        case("one message", {"a": 6.0}, "a"),
        case("two on one link", {"a": 6.0}, "a", "a"),
        case("a narrow second link", {"a": 6.0, "b": 2.0}, "ab"),
        case("one who cannot use its share", {"a": 6.0, "b": 1.0}, "a", "ab"),
        case("three links in a row", {"a": 6.0, "b": 4.0, "c": 9.0}, "ab", "bc", "c", "a"),
        case("a card for four", {"a": 30.0, "b": 30.0, "n": 12.0}, "an", "an", "bn", "bn", "ab"),
    ],
    attempt=attempt,
    properties=JUDGES,
)
