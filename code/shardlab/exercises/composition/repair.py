"""Exercise: find the one wrong row of a table of names, and repair it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank

Row = tuple[str, bool]  # a name in the file, and whether the matrix is stored transposed
Table = dict[str, Row]
Shapes = dict[str, tuple[int, ...]]


@dataclass
class Repaired:
    """What came back, and the first table that was tried although it does not fit the file."""

    table: Table = field(default_factory=dict)
    trouble: str = ""
    misfit: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Repaired:
    """Return the repaired table, and what was tried on the way."""
    broken, shapes, stored = case.given[:3]
    truth: Table = case.given[3]
    seen = Repaired()

    def agrees(table: Mapping[str, Row]) -> bool:
        tried = plain(table)
        seen.misfit = seen.misfit or misfit(tried, shapes, stored)
        return tried == truth

    found = function(dict(broken), dict(shapes), dict(stored), agrees)
    try:
        seen.table = plain(found)
    except (AttributeError, TypeError, ValueError):
        seen.trouble = describe(found)
    return seen


def plain(table: Mapping[str, Row]) -> Table:
    """Copy a table, whose rows may be lists."""
    return {str(name): (str(there), bool(turned)) for name, (there, turned) in table.items()}


def misfit(table: Table, shapes: Shapes, stored: Shapes) -> str:
    """Say what is wrong with a table without computing anything, or return an empty text."""
    if table.keys() != shapes.keys():
        return f"it has {len(table)} of {len(shapes)} rows"
    taken: dict[str, str] = {}
    for name, (there, turned) in table.items():
        if there not in stored:
            return f"the file has no {there}"
        if there in taken:
            return f"{taken[there]} and {name} both take {there}"
        if shapes[name] != (stored[there][::-1] if turned else stored[there]):
            return (
                f"{name} {shapes[name]} does not fit {there} {stored[there]}, transposed={turned}"
            )
        taken[there] = name
    return ""


@on_each_rank
def fits(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for a table that takes each tensor once, in its shape."""
    _, shapes, stored, _ = case.given
    wrong = seen.trouble or misfit(seen.table, shapes, stored)
    return Finding(_given(case), "a table that fits the file", wrong) if wrong else None


@on_each_rank
def one_row(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask that the right rows stay as they are."""
    broken, _, _, truth = case.given
    touched = [name for name in broken if broken[name] == truth[name] != seen.table.get(name)]
    if not touched:
        return None
    got = seen.trouble or f"{touched[0]}: {seen.table.get(touched[0])}"
    return Finding(_given(case), f"{touched[0]} stays {truth[touched[0]]}", got)


@on_each_rank
def repaired(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for the one row that was wrong."""
    broken, _, _, truth = case.given
    (name,) = (name for name in broken if broken[name] != truth[name])
    if seen.table.get(name) == truth[name]:
        return None
    return Finding(_given(case), f"{name} is repaired", seen.trouble or str(seen.table.get(name)))


@on_each_rank
def tries_what_fits(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask that no model is loaded of which names and shapes say already that it is wrong."""
    if not (wrong := seen.trouble or seen.misfit):
        return None
    return Finding(_given(case), "agrees() is asked about tables that fit", wrong)


def _given(case: Case) -> str:
    return f"table={case.given[0]}"


SHAPES: Shapes = {"q": (8, 8), "k": (4, 8), "gate": (16, 8), "up": (16, 8), "down": (8, 16)}
TRUTH: Table = {
    **{name: (f"h.0.{name}_proj", False) for name in ("q", "k", "gate", "up")},
    "down": ("h.0.c_proj", True),
}
STORED: Shapes = {
    there: SHAPES[name][::-1] if turned else SHAPES[name] for name, (there, turned) in TRUTH.items()
}


def _case(title: str, name: str, there: str, turned: bool = False, **more: tuple[int, ...]) -> Case:
    beside = {f"h.0.{each}": shape for each, shape in more.items()}
    given = (TRUTH | {name: (there, turned)}, SHAPES, STORED | beside, TRUTH)
    return Case(world_size=1, title=title, given=given)


EXERCISE = Exercise(
    name="composition.repair",
    compare="shardlab.ranks.checkpoint.hugging_face.names.sources",
    points=3,
    pure=True,
    cases=[
        _case("a name that the file does not have", "k", "h.0.key"),
        _case("a matrix that is not square, turned", "down", "h.0.c_proj"),
        _case("a square matrix, turned", "q", "h.0.q_proj", True),
        _case("up reads what gate reads", "up", "h.0.gate_proj"),
        _case("gate reads what up reads", "gate", "h.0.up_proj"),
        _case("a tensor that nobody reads", "gate", "h.0.w1", buffer=(16, 8)),
        _case("and another with a wrong shape", "q", "h.0.w", buffer=(8, 4)),
    ],
    attempt=attempt,
    properties={
        "the table fits the file": fits,
        "rows that were right stay as they are": one_row,
        "the wrong row is repaired": Dependent(repaired),
        "no table is tried that does not fit": tries_what_fits,
    },
)
