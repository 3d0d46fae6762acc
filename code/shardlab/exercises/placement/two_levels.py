"""Exercise: an all-reduce on two levels, inside nodes and across them.

Cho et al. 2019, "BlueConnect", https://proceedings.mlsys.org/paper_files/paper/2019/hash/0c8abcf158ed12d0dd94480681186fda-Abstract.html
"""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.facts import nodes

from ..checker import Case, Exercise
from ..shared import formulas


def two_levels(nbytes: float, num_nodes: int, gpus: int, inside: float, across: float) -> float:
    """Compute the right answer."""
    scattered = (gpus - 1) / gpus * nbytes / inside
    reduced = 2 * (num_nodes - 1) / num_nodes * (nbytes / gpus) / across
    return 2 * scattered + reduced


def case(
    title: str, nbytes: float, num_nodes: int, gpus: int, inside: float, across: float
) -> Case:
    """Make a case of these arguments."""
    sizes = {"nbytes": nbytes, "num_nodes": num_nodes, "gpus": gpus}
    given = {**sizes, "inside": inside, "across": across}
    return Case(world_size=1, title=title, given=given)


def of(name: str, num_nodes: int) -> Case:
    """Make a case of 1 GB on real machines."""
    node = nodes.node(name)
    rates = nodes.rates_of_a_gpu(node)
    title = f"{num_nodes} × {name}"
    return case(title, 1e9, num_nodes, node.gpus, rates["NVLink"], rates["network"])


def one_node(given: Mapping[str, Any]) -> bool:
    """Say whether there is one node."""
    return bool(given["num_nodes"] == 1)


def one_gpu_each(given: Mapping[str, Any]) -> bool:
    """Say whether each of several nodes has one GPU."""
    return bool(given["gpus"] == 1 < given["num_nodes"])


def both(given: Mapping[str, Any]) -> bool:
    """Say whether there are several nodes with several GPUs."""
    return bool(given["gpus"] > 1 and given["num_nodes"] > 1)


EXERCISE = Exercise(
    name="placement.two_levels",
    compare="shardlab.exchanges.hierarchical_all_reduce",
    points=3,
    pure=True,
    cases=[
        case("one node of 4", 120.0, 1, 4, 10.0, 1.0),
        case("4 nodes of one", 120.0, 4, 1, 10.0, 1.0),
        case("2 nodes of 2", 120.0, 2, 2, 10.0, 1.0),
        case("3 nodes of 2", 120.0, 3, 2, 10.0, 1.0),
        of("DGX A100", 4),
        of("DGX H100", 16),
        of("AWS p4d.24xlarge", 2),
    ],
    attempt=formulas.call,
    properties={
        "one node uses no network": formulas.is_number(two_levels, one_node),
        "nodes of one GPU are one ring": formulas.is_number(two_levels, one_gpu_each),
        "across the nodes goes a share of the buffer": formulas.is_number(two_levels, both),
    },
)
