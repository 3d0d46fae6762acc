"""Exercise: the time of a message over several hops."""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.facts import nodes
from shardlab.costs.facts.hops import Hop

from ..checker import Case, Exercise
from ..shared import formulas

Hops = list[tuple[float, float]]


def message_seconds(nbytes: float, hops: Hops) -> float:
    """Compute the right answer."""
    if not hops:
        return 0.0
    return max(latency for _, latency in hops) + nbytes / min(rate for rate, _ in hops)


def case(title: str, nbytes: float, hops: Hops) -> Case:
    """Make a case of these arguments."""
    return Case(world_size=1, title=title, given={"nbytes": nbytes, "hops": hops})


def between(name: str, a: int, b: int, num_nodes: int = 1) -> Case:
    """Send 100 MB from GPU `a` to GPU `b`."""
    path: tuple[Hop, ...] = nodes.cluster(name, num_nodes).path(a, b)
    hops = [(hop.bandwidth, hop.latency) for hop in path]
    return case(f"GPU {a} to GPU {b}, {num_nodes} × {name}", 1e8, hops)


def one(given: Mapping[str, Any]) -> bool:
    """Say whether there is one hop."""
    return len(given["hops"]) == 1


def several(given: Mapping[str, Any]) -> bool:
    """Say whether there are several hops."""
    return len(given["hops"]) > 1


def none(given: Mapping[str, Any]) -> bool:
    """Say whether there is no hop."""
    return not given["hops"]


EXERCISE = Exercise(
    name="interconnects.message_seconds",
    compare="shardlab.costs.facts.hops",
    points=2,
    pure=True,
    cases=[
        case("one hop", 100.0, [(50.0, 1.0)]),
        case("two equal hops", 100.0, [(50.0, 1.0), (50.0, 1.0)]),
        case("a narrow hop", 100.0, [(50.0, 1.0), (10.0, 1.0), (50.0, 1.0)]),
        case("a slow hop that is wide", 100.0, [(10.0, 1.0), (50.0, 4.0)]),
        case("no bytes", 0.0, [(50.0, 1.0), (10.0, 2.0)]),
        case("to itself", 100.0, []),
        between("DGX-1V", 0, 5),
        between("DGX H100", 0, 5),
        between("PCIe box, 100 GbE", 7, 8, 2),
    ],
    attempt=formulas.call,
    properties={
        "one hop takes its latency and its bytes": formulas.is_number(message_seconds, one),
        "several hops are as fast as the narrowest": formulas.is_number(message_seconds, several),
        "no hop takes no time": formulas.is_number(message_seconds, none),
    },
)
