"""Exercise: the fastest plan that fits, and what to say where none does."""

from collections.abc import Callable
from typing import Any

from shardlab.costs.facts.hardware import chip, link
from shardlab.costs.facts.network import uniform
from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.ranks import comm
from shardlab.spec import TransformerSpec

from ..checker import Case, Exercise, Finding

STARTER = '''\
def my_choose(plans, memory):
    """The plan to train with, and the bytes that it lacks on each GPU.

    plans: (name, seconds of a step, bytes on a GPU); memory: bytes of a GPU.
    The fastest that fits, and 0; where none fits, the one that lacks least.
    """
    name, seconds, nbytes = plans[0]  # the first one: mend it
    return name, 0
'''
Listed = list[tuple[str, float, float]]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    plans, memory = case.given
    answer = function(list(plans), memory)
    try:
        name, lacks = answer
        return str(name), float(lacks)
    except (TypeError, ValueError):
        return f"{answer!r:.60}, a {type(answer).__name__}"


def choose(plans: Listed, memory: float) -> tuple[str, float]:
    fits = [plan for plan in plans if plan[2] <= memory]
    if fits:
        return min(fits, key=lambda plan: plan[1])[0], 0.0
    least = min(plans, key=lambda plan: plan[2])
    return least[0], least[2] - memory


def is_a_pair(case: Case, seen: list[Any]) -> Finding | None:
    return Finding(_given(case), "a name and a number of bytes", seen[0]) if isinstance(seen[0], str) else None


def is_the_plan(case: Case, seen: list[Any], *, where_one_fits: bool) -> Finding | None:
    right = choose(*case.given)
    if (right[1] == 0) != where_one_fits:
        return None
    name = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    return None if name == right[0] else Finding(_given(case), right[0], name)


def the_fastest_that_fits(case: Case, seen: list[Any]) -> Finding | None:
    return is_the_plan(case, seen, where_one_fits=True)


def the_nearest_where_none_does(case: Case, seen: list[Any]) -> Finding | None:
    return is_the_plan(case, seen, where_one_fits=False)


def what_it_lacks(case: Case, seen: list[Any]) -> Finding | None:
    right, got = choose(*case.given)[1], seen[0][1] if isinstance(seen[0], tuple) else float("nan")
    close = abs(got - right) <= 1e-6 * max(1.0, right)
    return None if close else Finding(_given(case), f"lacks {right:,.0f} bytes", f"{got:,.0f}")


def _given(case: Case) -> str:
    plans, memory = case.given
    shown = ", ".join(f"({name!r}, {seconds:.3g}, {nbytes:.4g})" for name, seconds, nbytes in plans[:3])
    return f"plans=[{shown}{', ...' if len(plans) > 3 else ''}], memory={memory:g}"  # noqa: PLR2004


def of_a_planner() -> Listed:
    """Plans for a small GPT on eight GPUs, as `costs.planning` finds them; those that lack memory are not timed."""
    spec = TransformerSpec(vocab_size=50_257, context_length=1024, hidden_size=2048, num_layers=8, num_heads=16)
    cluster = uniform(8, link("NVLink 3"), chip("A100 SXM 80 GB"))
    found = planner.search(Question(spec=spec, cluster=cluster, batch=16, schedules=("1F1B",), zero=(0, 1)))
    return [(plan.name, plan.seconds, plan.nbytes) for plan in sorted(found.fitting, key=lambda plan: plan.name)][::5]


PLANNED = of_a_planner()
CASES: dict[str, tuple[Listed, float]] = {
    "one plan": ([("a", 2.0, 8e9)], 10e9),
    "the second is faster": ([("a", 2.0, 8e9), ("b", 1.0, 9e9)], 10e9),
    "the faster one does not fit": ([("a", 2.0, 8e9), ("b", 1.0, 12e9)], 10e9),
    "one fits to the byte": ([("a", 2.0, 8e9), ("b", 1.0, 10e9)], 10e9),
    "none fits": ([("a", 1.0, 14e9), ("b", 3.0, 12e9), ("c", 2.0, 13e9)], 10e9),
    "a planner's, on large GPUs": (PLANNED, 80e9),
    "a planner's, on small GPUs": (PLANNED, sorted(nbytes for *_, nbytes in PLANNED)[len(PLANNED) // 2]),
    "a planner's, on tiny GPUs": (PLANNED, 1e9),
}
EXERCISE = Exercise(
    name="planner.choose",
    prompt="Choose among plans: the fastest that fits; where none fits, the one that lacks least, and how much.",
    starter=STARTER,
    hint="First keep what fits, and take the least seconds. Only where nothing is left, take the least bytes.",
    points=1,
    pure=True,
    cases=[Case(world_size=1, title=title, given=given) for title, given in CASES.items()],
    attempt=attempt,
    properties={
        "returns a name and the bytes that lack": is_a_pair,
        "the fastest that fits": the_fastest_that_fits,
        "where none fits, the one that lacks least": the_nearest_where_none_does,
        "says how many bytes lack": what_it_lacks,
    },
)
