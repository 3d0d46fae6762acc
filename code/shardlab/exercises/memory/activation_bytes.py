"""Exercise: what one GPT layer keeps for its backward, by Table 2 of Korthikanti et al. 2022.

https://arxiv.org/abs/2205.05198. The formulas are those of the paper, whose full recomputation has
no sequence parallelism; `costs.memory.activations` adds what they leave out.
"""

from collections.abc import Mapping
from typing import Any

from ..checker import Case, Exercise
from ..shared import formulas


def table_2(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tp: int,
    sequence_parallel: bool,
    recomputation: str,
) -> float:
    """Return the bytes by the paper's formulas; s, b, h, a and t are its letters."""
    sbh = sequence * batch * hidden
    scores = 5 * heads * sequence / hidden
    outside = sbh / tp if sequence_parallel else sbh
    if recomputation == "full":
        return 2 * outside
    return 10 * outside + sbh * (24 / tp + (scores / tp if recomputation == "none" else 0))


def case(
    title: str,
    *sizes: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recomputation: str = "none",
) -> Case:
    """Make a case of these arguments."""
    given = dict(zip(("sequence", "batch", "hidden", "heads"), sizes, strict=True))
    how = {"tp": tp, "sequence_parallel": sequence_parallel, "recomputation": recomputation}
    return Case(world_size=tp, title=title, given={**given, **how})


def whole(given: Mapping[str, Any]) -> bool:
    """Say whether one rank keeps everything."""
    return bool(given["tp"] == 1 and given["recomputation"] == "none")


def cut(given: Mapping[str, Any]) -> bool:
    """Say whether tensor parallelism alone cuts what a rank keeps."""
    alone = given["recomputation"] == "none" and not given["sequence_parallel"]
    return bool(given["tp"] > 1 and alone)


def shared(given: Mapping[str, Any]) -> bool:
    """Say whether sequence parallelism cuts the rest."""
    return bool(given["sequence_parallel"]) and given["recomputation"] == "none"


GPT_3 = (2048, 1, 12288, 96)
ALONE: Any = {"sequence_parallel": True, "recomputation": "full"}
BOTH: Any = {"sequence_parallel": True, "recomputation": "selective"}
EXERCISE = Exercise(
    name="memory.activation_bytes",
    compare="shardlab.costs.memory.activations.layer",
    points=2,
    pure=True,
    cases=[
        case("one token", 1, 1, 2, 1),
        case("four tokens", 4, 1, 8, 2),
        case("two sequences", 4, 2, 8, 2),
        case("a layer of GPT-3", *GPT_3),
        case("selective recomputation", 4, 2, 8, 2, recomputation="selective"),
        case("full recomputation", 4, 2, 8, 2, recomputation="full"),
        case("tensor parallel", 4, 2, 8, 2, tp=2),
        case("tensor and sequence parallel", 4, 2, 8, 2, tp=2, sequence_parallel=True),
        case("tensor parallel, selective", 4, 2, 8, 2, tp=2, recomputation="selective"),
        case("all three", 4, 2, 8, 2, tp=2, **BOTH),
        case("tensor parallel, full", 4, 2, 8, 2, tp=2, recomputation="full"),
        case("tensor and sequence parallel, full", 4, 2, 8, 2, tp=2, **ALONE),
        case("a layer of GPT-3, tensor parallel", *GPT_3, tp=8),
        case("a layer of GPT-3, all three", *GPT_3, tp=8, **BOTH),
    ],
    attempt=formulas.call,
    properties={
        "one rank that recomputes nothing": formulas.is_number(table_2, whole),
        "tensor parallelism cuts what lies between matrices": formulas.is_number(table_2, cut),
        "sequence parallelism cuts the rest": formulas.is_number(table_2, shared),
        "selective recomputation keeps no scores": formulas.is_number(
            table_2, lambda given: given["recomputation"] == "selective"
        ),
        "full recomputation keeps the input, which sequence parallelism cuts": formulas.is_number(
            table_2, lambda given: given["recomputation"] == "full"
        ),
    },
)
