"""Exercise: the axes over which a parameter's gradient is summed, and the factor, in a mixture."""

from collections.abc import Callable, Iterator, Mapping
from math import isclose, prod
from random import Random
from typing import Any

from shardlab import comm
from shardlab.sharding.types import rules
from shardlab.sharding.types.states import Sharding, along, gradient, parse

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge, describe
from ..shared import formulas

AXES = ("dp", "cp", "tp", "ep")
TOKENS = "[B/dp/ep, S/cp]"
Answer = tuple[list[str], float | str]
PARAMETERS = {  # what it is -> its dims, what it meets, and the product
    "queries": ("h H e", "[B/dp/ep, S/cp, h] R@tp", "[B/dp/ep, S/cp, H/tp, e]"),
    "attention's output": ("H e h", "[B/dp/ep, S/cp, H/tp, e]", "[B/dp/ep, S/cp, h] P@tp"),
    "a key that all heads share": ("h e", "[B/dp/ep, S/cp, h] R@tp", "[B/dp/ep, S/cp, e] R@tp"),
    "a gain on whole tokens": ("h", "[B/dp/ep, S/cp, h]", "[B/dp/ep, S/cp, h]"),
    "a gain on cut tokens": ("h", "[B/dp/ep, S/cp/tp, h]", "[B/dp/ep, S/cp/tp, h]"),
    "a router": ("h E", "[B/dp/ep, S/cp, h]", "[B/dp/ep, S/cp, E]"),
    "a router on cut tokens": ("h E", "[B/dp/ep, S/cp/tp, h]", "[B/dp/ep, S/cp/tp, E]"),
    "experts, up": ("E h f", "[B/dp, S/cp, E/ep, C, h] R@tp", "[B/dp, S/cp, E/ep, C, f/tp]"),
    "experts, down": ("E f h", "[B/dp, S/cp, E/ep, C, f/tp]", "[B/dp, S/cp, E/ep, C, h] P@tp"),
    "the head": ("h V", "[B/dp/ep, S/cp, h] R@tp", "[B/dp/ep, S/cp, V/tp]"),
}


def states(sharding: Sharding) -> dict[str, str]:
    """Return the state along each axis."""
    return {axis: along(sharding, axis) for axis in AXES}


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Answer | str:
    """Return the axes and the factor, or a description of what came instead."""
    name, degrees = case.given
    dims, *texts = PARAMETERS[name]
    met = [states(parse(text)) for text in (*texts, TOKENS)]
    found = function(dims.split(), *met, dict(degrees))
    try:
        axes, factor = found
        return [str(axis) for axis in axes], evidence.number(factor)
    except (TypeError, ValueError):
        return describe(found)


def summed(name: str) -> list[str]:
    """Find the axes along which the gradient, a product of x and the gradient of y, is P."""
    dims, x, y = PARAMETERS[name]
    found = rules.product(dims, [parse(x), gradient(parse(y))])
    return [axis for axis in AXES if axis in found.partial]


def factor(degrees: Mapping[str, int]) -> float:
    """Compute one over the ranks that read different tokens."""
    tokens = parse(TOKENS)
    return 1 / prod(degrees[axis] for axis in tokens.axes)


def judge(problem: Callable[[str, Mapping[str, int], Answer], tuple[str, str] | None]) -> Judge:
    """Judge the answer; `problem` returns what was expected and what came, or None."""

    def judge_answer(case: Case, observed: list[Any]) -> Finding | None:
        name, degrees = case.given
        dims, x, y = PARAMETERS[name]
        parameter = f"[{dims.replace(' ', ', ')}]"
        given = f"{parameter}, x {x}, y {y}, tokens {TOKENS}, degrees {degrees}"
        if isinstance(observed[0], str):
            return Finding(given, "(axes, factor)", observed[0])
        wrong = problem(name, degrees, observed[0])
        return Finding(given, *wrong) if wrong else None

    return judge_answer


def misses(name: str, degrees: Mapping[str, int], answer: Answer) -> tuple[str, str] | None:
    """Ask for every axis along which the gradient is a term; an axis of one rank needs no sum."""
    axes = answer[0]
    missing = [each for each in summed(name) if degrees[each] > 1 and each not in axes]
    return (f"a sum over {', '.join(missing)} too", f"axes {axes}") if missing else None


def exceeds(name: str, degrees: Mapping[str, int], answer: Answer) -> tuple[str, str] | None:
    """Ask for no other axis of several ranks, and for none twice."""
    axes, right = answer[0], summed(name)
    more = [each for each in AXES if degrees[each] > 1 and axes.count(each) > right.count(each)]
    more += sorted({*axes} - {*AXES})
    if not more:
        return None
    return f"no sum over {', '.join(more)}, and none twice", f"axes {axes}"


def scales(name: str, degrees: Mapping[str, int], answer: Answer) -> tuple[str, str] | None:
    """Compare the factor."""
    right, got = factor(degrees), answer[1]
    if isinstance(got, float) and isclose(right, got, rel_tol=formulas.ROUNDING):
        return None
    return f"{right:.6g}", f"{got:.6g}" if isinstance(got, float) else got


def cases() -> Iterator[Case]:
    """Give each parameter two ranks along one axis after the other, and then draw all degrees."""
    random = Random(0)
    ones = dict.fromkeys(AXES, 1)
    few = [(name, {**ones, axis: 2}) for name in PARAMETERS for axis in AXES]
    many = [(name, {axis: random.choice([2, 3, 4]) for axis in AXES}) for name in PARAMETERS]
    drawn = few + sorted(many, key=lambda given: prod(given[1].values()))
    for name, degrees in drawn:
        yield Case(world_size=prod(degrees.values()), title=name, given=(name, degrees))


EXERCISE = Exercise(
    name="sharding.reducer",
    compare="shardlab.sharding.types.rules.product",
    points=2,
    pure=True,
    cases=list(cases()),
    attempt=attempt,
    properties={
        "sums over every axis along which the gradient is a term": judge(misses),
        "sums over no other axis": judge(exceeds),
        "the factor makes it the gradient of the mean": judge(scales),
    },
)
