"""Exercise: all legal ways to cut a model over GPUs by tensor, pipeline and data parallelism."""

from collections.abc import Callable
from itertools import product
from typing import Any

from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding, Judge

STARTER = '''\
def my_layouts(gpus, gpus_per_node, heads, layers, batch):
    """Every (tp, pp, dp) that uses all GPUs, as a list.

    tp ranks share heads and stay in a node that they fill evenly; pp stages
    have equally many layers; dp replicas have equally many sequences.
    """
    return [(1, 1, gpus)]  # one of them, perhaps: mend it
'''
Triple = tuple[int, int, int]
NAMES = ("gpus", "gpus_per_node", "heads", "layers", "batch")


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Any:
    answer = function(*case.given)
    try:
        return [(int(tp), int(pp), int(dp)) for tp, pp, dp in answer]
    except (TypeError, ValueError):
        return f"{answer!r:.60}, a {type(answer).__name__}"


def layouts(gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> set[Triple]:
    """By trying all triples."""
    tests = RULES.values()
    triples = product(range(1, gpus + 1), range(1, layers + 1), range(1, gpus + 1))
    given = (gpus, gpus_per_node, heads, layers, batch)
    return {triple for triple in triples if all(test(triple, *given) for test in tests)}


def uses_all(triple: Triple, gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> bool:
    tp, pp, dp = triple
    return tp * pp * dp == gpus


def splits_heads(triple: Triple, gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> bool:
    return heads % triple[0] == 0 and gpus_per_node % triple[0] == 0


def splits_layers(triple: Triple, gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> bool:
    return layers % triple[1] == 0


def splits_batch(triple: Triple, gpus: int, gpus_per_node: int, heads: int, layers: int, batch: int) -> bool:
    return batch % triple[2] == 0


RULES: dict[str, Callable[..., bool]] = {
    "every layout uses all GPUs": uses_all,
    "tp divides the heads and the GPUs of a node": splits_heads,
    "pp divides the layers": splits_layers,
    "dp divides the batch": splits_batch,
}


def are_triples(case: Case, seen: list[Any]) -> Finding | None:
    return Finding(_given(case), "a list of (tp, pp, dp)", seen[0]) if isinstance(seen[0], str) else None


def obeys(name: str) -> Judge:
    """No layout breaks the rule of that name."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        wrong = [triple for triple in _triples(seen) if 0 in triple or not RULES[name](triple, *case.given)]
        return Finding(_given(case), name, f"(tp, pp, dp) = {wrong[0]}") if wrong else None

    return judge


def none_is_missing(case: Case, seen: list[Any]) -> Finding | None:
    """All there are, each once."""
    right, found = layouts(*case.given), _triples(seen)
    missing = sorted(right - set(found))
    if missing:
        return Finding(_given(case), f"{len(right)} layouts, (tp, pp, dp) = {missing[0]} among them", f"{len(found)}")
    twice = len(found) - len(set(found))
    return Finding(_given(case), "each layout once", f"{twice} more than once") if twice else None


def _triples(seen: list[Any]) -> list[Triple]:
    return seen[0] if isinstance(seen[0], list) else []


def _given(case: Case) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(NAMES, case.given, strict=True))


CASES = {
    "one GPU": (1, 1, 4, 4, 4),
    "two GPUs": (2, 2, 4, 4, 4),
    "three heads": (2, 2, 3, 4, 4),
    "five layers": (2, 2, 4, 5, 4),
    "three sequences": (2, 2, 4, 4, 3),
    "two nodes": (4, 2, 8, 8, 8),
    "GPT-2 XL on 16 GPUs": (16, 8, 25, 48, 512),
    "a small GPT on 24 GPUs": (24, 8, 12, 12, 96),
}
EXERCISE = Exercise(
    name="planner.layouts",
    prompt="List every legal layout of a model on some GPUs: tensor, pipeline and data parallel degrees.",
    starter=STARTER,
    hint=(
        "Try every tp and every pp, and let dp be what is left of the GPUs. A degree is legal if the remainder of a "
        "division is zero; tp has two such conditions."
    ),
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
