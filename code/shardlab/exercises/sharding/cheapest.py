"""Exercise: how to cut the matrices of a layer, so that its redistributions send fewest bytes.

Columns followed by rows are Megatron-LM's (https://arxiv.org/abs/1909.08053); a matrix that is
gathered where its tokens are is ZeRO-3's (https://arxiv.org/abs/1910.02054).
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from math import isclose
from random import Random
from typing import Any

from shardlab import comm
from shardlab.sharding.types.states import Sharding, along
from shardlab.sharding.types.tracer import Tracer

from ..checker import Case, Dependent, Exercise, Finding, Judge, describe
from ..shared import formulas, typed

KINDS = ("columns", "rows", "gathered")
TAKES = {"columns": "R", "rows": "S(width)", "gathered": "S(tokens)"}
DIMS = ("tokens", "width")
ARROWS = (
    *("S(width) -> R", "P -> R", "P -> S(width)", "P -> I", "S(width) -> I"),
    *("I -> R", "I -> S(width)", "S(width) -> S(tokens)"),
)
ITEM = 2  # bytes of a number
Plan = tuple[str, ...]
Given = tuple[int, tuple[int, ...], str, int]  # tokens, widths, ends, ranks


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[str] | str:
    """Return the cuts, or a description of what came instead."""
    tokens, widths, ends, ranks = case.given
    found = function(tokens, list(widths), ends, prices(ranks))
    plan = typed.words(found, len(widths) - 1)
    return describe(found) if plan is None or not {*plan} <= {*KINDS} else plan


def prices(ranks: int) -> dict[str, float]:
    """Return the bytes for each number of a tensor, by the kinds of its states."""
    sizes = dict.fromkeys(DIMS, ranks)
    found = {}
    for arrow in ARROWS:
        tracer = Tracer({typed.AXIS: ranks}, sizes, ITEM)
        tracer.redistribute(typed.typed(DIMS, arrow.split(" -> ")[0]), typed.AXIS, arrow)
        short = arrow.replace("(width)", "").replace("(tokens)", "")
        found[short] = sent(tracer) / ranks**2
    return found


def sent(tracer: Tracer) -> float:
    """Add up the bytes of all collectives."""
    return sum(nbytes for _, _, nbytes in tracer.collectives())


@cache
def nbytes(given: Given, plan: Plan) -> float:
    """Compute what a rank sends with this plan, in forward and backward together."""
    tokens, widths, ends, ranks = given
    sizes = {"tokens": tokens} | {f"w{i}": width for i, width in enumerate(widths)}
    tracer = Tracer({typed.AXIS: ranks}, sizes, ITEM)
    x = typed.typed(("tokens", "w0"), ends)
    for i, kind in enumerate(plan):
        old, new = f"w{i}", f"w{i + 1}"
        x = _to(tracer, x, TAKES[kind].replace("width", old))
        x = tracer.product(f"tokens {new}", x, _matrix(tracer, kind, old, new))
    _to(tracer, x, ends)
    return sent(tracer)


def _to(tracer: Tracer, x: Sharding, state: str) -> Sharding:
    now = along(x, typed.AXIS)
    return x if now == state else tracer.redistribute(x, typed.AXIS, f"{now} -> {state}")


def _matrix(tracer: Tracer, kind: str, old: str, new: str) -> Sharding:
    cut = new if kind == "columns" else old
    matrix = typed.typed((old, new), f"S({cut})")
    return _to(tracer, matrix, "R") if kind == "gathered" else matrix


@cache
def cheapest(given: Given) -> Plan:
    """Find the plan with fewest bytes by trying all."""
    plans = product(KINDS, repeat=len(given[1]) - 1)
    return min(plans, key=lambda plan: nbytes(given, plan))


def judge(where: Callable[[Plan], bool]) -> Judge:
    """Compare bytes with those of the cheapest plan, in the cases that `where` selects by it."""

    def judge_plan(case: Case, observed: list[Any]) -> Finding | None:
        best, plan = cheapest(case.given), observed[0]
        if isinstance(plan, str) or not where(best):
            return None
        right, got = (nbytes(case.given, tuple(each)) for each in (best, plan))
        if isclose(right, got, rel_tol=formulas.ROUNDING):
            return None
        return Finding(show(case.given), f"{right:,.0f} bytes", f"{got:,.0f} bytes with {plan}")

    return judge_plan


def is_a_plan(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for one cut of each matrix."""
    if not isinstance(observed[0], str):
        return None
    _, widths, _, _ = case.given
    expected = f"a list of {len(widths) - 1}, each one of {', '.join(KINDS)}"
    return Finding(show(case.given), expected, observed[0])


def show(given: Given) -> str:
    """Show what the function was given."""
    tokens, widths, ends, ranks = given
    return f"tokens={tokens}, widths={list(widths)}, ends={ends!r}, prices on {ranks} ranks"


def stays(plan: Plan) -> bool:
    """Say whether no matrix is gathered."""
    return "gathered" not in plan


def moves(plan: Plan) -> bool:
    """Say whether all matrices are gathered."""
    return {*plan} == {"gathered"}


def mixes(plan: Plan) -> bool:
    """Say whether some matrices are gathered."""
    return not stays(plan) and not moves(plan)


def cases() -> list[Case]:
    """Draw layers of one to four matrices, with few tokens and with many."""
    random = Random(16)  # some of every kind
    drawn = []
    for number in range(20):
        matrices = 1 + number // 5
        ranks = 2 * matrices
        widths = tuple(ranks * random.choice([1, 2, 4, 8]) for _ in range(1 + matrices))
        tokens = ranks * random.choice([1, 2, 4, 16])
        drawn.append((tokens, widths, random.choice(["I", "S(tokens)"]), ranks))
    return [Case(world_size=each[-1], title=_title(len(each[1]) - 1), given=each) for each in drawn]


def _title(matrices: int) -> str:
    return f"{matrices} matrices" if matrices > 1 else "one matrix"


EXERCISE = Exercise(
    name="sharding.cheapest",
    points=3,
    pure=True,
    cases=cases(),
    attempt=attempt,
    properties={
        "names a cut for each matrix": is_a_plan,
        "fewest bytes where every matrix should stay": Dependent(judge(stays)),
        "fewest bytes where every matrix should be gathered": Dependent(judge(moves)),
        "fewest bytes where some matrices should be gathered": Dependent(judge(mixes)),
    },
)
