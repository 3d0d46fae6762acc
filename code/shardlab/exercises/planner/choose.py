"""Exercise: the fastest plan that fits, or else the plan that lacks the fewest bytes."""

from collections.abc import Callable
from typing import Any

from shardlab import comm
from shardlab.costs.facts.hardware import chip, link
from shardlab.costs.facts.network import uniform
from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.model.spec import TransformerSpec

from ..checker import Case, Exercise, Finding, Judge, describe, on_each_rank

Listed = list[tuple[str, float, float]]
NEAR = 1e-6  # relative
SHOWN = 3  # plans that a report lists


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return a name and a number, or a description of what came instead."""
    plans, memory = case.given
    answer = function(list(plans), memory)
    try:
        name, lacks = answer
        return str(name), float(lacks)
    except (TypeError, ValueError):
        return describe(answer)


def choose(plans: Listed, memory: float) -> tuple[str, float]:
    """Compute the right answer."""
    fits = [plan for plan in plans if plan[2] <= memory]
    if fits:
        return min(fits, key=lambda plan: plan[1])[0], 0.0
    least = min(plans, key=lambda plan: plan[2])
    return least[0], least[2] - memory


@on_each_rank
def is_a_pair(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for a name and a number."""
    if not isinstance(seen, str):
        return None
    return Finding(_given(case), "a name and a number of bytes", seen)


def is_the_plan(*, where_one_fits: bool) -> Judge:
    """Ask for the right plan, in the cases in which one fits, or in those in which none does."""

    @on_each_rank
    def judge(case: Case, rank: int, seen: Any) -> Finding | None:
        right, lacks = choose(*case.given)
        if (lacks == 0) != where_one_fits:
            return None
        name = seen[0] if isinstance(seen, tuple) else seen
        return None if name == right else Finding(_given(case), right, name)

    return judge


@on_each_rank
def what_it_lacks(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for the bytes that the plan lacks."""
    _, right = choose(*case.given)
    got = seen[1] if isinstance(seen, tuple) else float("nan")
    if abs(got - right) <= NEAR * max(1.0, right):
        return None
    return Finding(_given(case), f"lacks {right:,.0f} bytes", f"{got:,.0f}")


def _given(case: Case) -> str:
    plans, memory = case.given
    shown = [f"({name!r}, {seconds:.3g}, {size:.4g})" for name, seconds, size in plans[:SHOWN]]
    shown += ["..."] * (len(plans) > SHOWN)
    return f"plans=[{', '.join(shown)}], memory={memory:g}"


def of_a_planner() -> Listed:
    """List plans for a small GPT on eight GPUs, as `costs.planning` finds them."""
    spec = TransformerSpec(
        vocab_size=50_257, context_length=1024, hidden_size=2048, num_layers=8, num_heads=16
    )
    cluster = uniform(8, link("NVLink 3"), chip("A100 SXM 80 GB"))
    question = Question(spec=spec, cluster=cluster, batch=16, schedules=("1F1B",), zero=(0, 1))
    found = sorted(planner.search(question).fitting, key=lambda plan: plan.name)
    return [(plan.name, plan.seconds, plan.nbytes) for plan in found[::5]]


PLANNED = of_a_planner()
MEDIAN = sorted(nbytes for *_, nbytes in PLANNED)[len(PLANNED) // 2]
CASES: dict[str, tuple[Listed, float]] = {
    "one plan": ([("a", 2.0, 8e9)], 10e9),
    "the second is faster": ([("a", 2.0, 8e9), ("b", 1.0, 9e9)], 10e9),
    "the faster one does not fit": ([("a", 2.0, 8e9), ("b", 1.0, 12e9)], 10e9),
    "one fits to the byte": ([("a", 2.0, 8e9), ("b", 1.0, 10e9)], 10e9),
    "none fits": ([("a", 1.0, 14e9), ("b", 3.0, 12e9), ("c", 2.0, 13e9)], 10e9),
    "a planner's, on large GPUs": (PLANNED, 80e9),
    "a planner's, on small GPUs": (PLANNED, MEDIAN),
    "a planner's, on tiny GPUs": (PLANNED, 1e9),
}
EXERCISE = Exercise(
    name="planner.choose",
    compare="shardlab.costs.planning.plans.Plans",
    points=1,
    pure=True,
    cases=[Case(world_size=1, title=title, given=given) for title, given in CASES.items()],
    attempt=attempt,
    properties={
        "returns a name and the bytes that lack": is_a_pair,
        "the fastest that fits": is_the_plan(where_one_fits=True),
        "where none fits, the one that lacks least": is_the_plan(where_one_fits=False),
        "says how many bytes lack": what_it_lacks,
    },
)
