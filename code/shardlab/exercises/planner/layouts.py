"""Exercise: all legal ways to cut a model over GPUs by tensor, pipeline and data parallelism."""

from collections.abc import Callable
from itertools import product
from typing import Any

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank

Triple = tuple[int, int, int]
Given = dict[str, int]  # the arguments by name
NAMES = ("gpus", "gpus_per_node", "heads", "layers", "batch")


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    """Return the layouts, or a description of what came instead."""
    answer = function(*case.given)
    try:
        return [(int(tp), int(pp), int(dp)) for tp, pp, dp in answer]
    except (TypeError, ValueError):
        return describe(answer)


def layouts(gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> set[Triple]:
    """Find the layouts by trying all triples."""
    triples = product(range(1, gpus + 1), range(1, layers + 1), range(1, gpus + 1))
    numbers = (gpus, gpus_per_node, heads, layers, batch)
    given = dict(zip(NAMES, numbers, strict=True))
    return {triple for triple in triples if all(rule(triple, given) for rule in RULES.values())}


def uses_all(triple: Triple, given: Given) -> bool:
    """Say whether the degrees use all GPUs."""
    tp, pp, dp = triple
    return tp * pp * dp == given["gpus"]


def splits_heads(triple: Triple, given: Given) -> bool:
    """Say whether tp divides the heads and the GPUs of a node."""
    tp, _, _ = triple
    return given["heads"] % tp == 0 and given["gpus_per_node"] % tp == 0


def splits_layers(triple: Triple, given: Given) -> bool:
    """Say whether pp divides the layers."""
    _, pp, _ = triple
    return given["layers"] % pp == 0


def splits_batch(triple: Triple, given: Given) -> bool:
    """Say whether dp divides the sequences."""
    _, _, dp = triple
    return given["batch"] % dp == 0


RULES: dict[str, Callable[[Triple, Given], bool]] = {
    "every layout uses all GPUs": uses_all,
    "tp divides the heads and the GPUs of a node": splits_heads,
    "pp divides the layers": splits_layers,
    "dp divides the batch": splits_batch,
}


@on_each_rank
def are_triples(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for a list of triples."""
    if not isinstance(seen, str):
        return None
    return Finding(_given(case), "a list of (tp, pp, dp)", seen)


def obeys(name: str) -> Dependent:
    """Ask that no layout breaks the rule of this name."""
    rule = RULES[name]

    @Dependent
    @on_each_rank
    def judge(case: Case, rank: int, seen: Any) -> Finding | None:
        given = dict(zip(NAMES, case.given, strict=True))
        for triple in _triples(seen):
            if 0 in triple or not rule(triple, given):
                return Finding(_given(case), name, f"(tp, pp, dp) = {triple}")
        return None

    return judge


@on_each_rank
def none_is_missing(case: Case, rank: int, seen: Any) -> Finding | None:
    """Ask for all layouts, each of them once."""
    right = layouts(*case.given)
    found = _triples(seen)
    missing = sorted(right - set(found))
    if missing:
        expected = f"{len(right)} layouts, (tp, pp, dp) = {missing[0]} among them"
        return Finding(_given(case), expected, f"{len(found)}")
    twice = len(found) - len(set(found))
    return Finding(_given(case), "each layout once", f"{twice} more than once") if twice else None


def _triples(seen: Any) -> list[Triple]:
    return seen if isinstance(seen, list) else []


def _given(case: Case) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(NAMES, case.given, strict=True))


CASES = {
    "one GPU": (1, 1, 4, 4, 4),
    "two GPUs": (2, 2, 4, 4, 4),
    "three heads": (2, 2, 3, 4, 4),
    "five layers": (2, 2, 4, 5, 4),
    "three sequences": (2, 2, 4, 4, 3),
    "two nodes": (4, 2, 8, 8, 8),
    "a node of six": (6, 6, 6, 4, 12),
    "GPT-2 XL on 16 GPUs": (16, 8, 25, 48, 512),
    "a small GPT on 24 GPUs": (24, 8, 12, 12, 96),
}
EXERCISE = Exercise(
    name="planner.layouts",
    compare="shardlab.costs.planning.tables.every_degree",
    points=2,
    pure=True,
    cases=[Case(world_size=1, title=title, given=given) for title, given in CASES.items()],
    attempt=attempt,
    properties={
        "returns (tp, pp, dp) in a list": are_triples,
        **{name: obeys(name) for name in RULES},
        "none is missing, none is there twice": none_is_missing,
    },
)
