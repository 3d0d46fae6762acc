"""Exercise: a GPU's share of its node's network cards, in bytes."""

from collections.abc import Mapping
from typing import Any

from shardlab.costs.facts import nodes

from ..checker import Case, Exercise
from ..shared import formulas


def network_share(num_cards: int, gigabits: float, num_gpus: int) -> float:
    """Compute the right answer."""
    return num_cards * gigabits * 1e9 / 8 / num_gpus


def case(title: str, num_cards: int, gigabits: float, num_gpus: int) -> Case:
    """Make a case of these arguments."""
    given = {"num_cards": num_cards, "gigabits": gigabits, "num_gpus": num_gpus}
    return Case(world_size=1, title=title, given=given)


def published(name: str) -> Case:
    """Make a case of a node as its maker describes it."""
    node = nodes.node(name)
    gigabits = 8e-9 * node.network_bandwidth / node.cards
    return case(name, node.cards, gigabits, node.gpus)


def alone(given: Mapping[str, Any]) -> bool:
    """Say whether one GPU has all cards."""
    return bool(given["num_gpus"] == 1)


def shared(given: Mapping[str, Any]) -> bool:
    """Say whether several GPUs share the cards."""
    return bool(given["num_gpus"] > 1)


MACHINES = ("DGX-1V", "DGX A100", "AWS p4d.24xlarge", "DGX H100", "GCP a2-highgpu-8g")


EXERCISE = Exercise(
    name="interconnects.network_share",
    compare="shardlab.costs.facts.nodes.rates_of_a_gpu",
    points=1,
    pure=True,
    cases=[
        case("one GPU, one card of 8 Gb/s", 1, 8, 1),
        case("one GPU, two cards", 2, 8, 1),
        case("two GPUs, one card", 1, 16, 2),
        *map(published, MACHINES),
    ],
    attempt=formulas.call,
    properties={
        "a GPU alone has its cards, in bytes": formulas.is_number(network_share, alone),
        "GPUs share the cards of their node": formulas.is_number(network_share, shared),
    },
)
