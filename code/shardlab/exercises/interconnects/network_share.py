"""Exercise: bits and bytes. What one GPU has of its node's network cards."""

from shardlab.costs.facts import nodes

from .. import evidence
from ..checker import Case, Exercise

STARTER = '''\
def my_network_share(num_cards, gigabits, num_gpus):
    """Bytes per second that each GPU of a node can send to other nodes.

    The node has num_cards network cards of so many gigabits per second in one
    direction; all GPUs send at once.
    """
    return num_cards * gigabits * 1e9  # a number, but of what? mend it
'''


def network_share(num_cards: int, gigabits: float, num_gpus: int) -> float:
    return num_cards * gigabits * 1e9 / 8 / num_gpus


def case(title: str, num_cards: int, gigabits: float, num_gpus: int) -> Case:
    given = {"num_cards": num_cards, "gigabits": gigabits, "num_gpus": num_gpus}
    return Case(world_size=1, title=title, given=given)


def published(name: str) -> Case:
    """A node as its maker describes it."""
    node = nodes.node(name)
    return case(name, node.cards, 8e-9 * node.network_bandwidth / node.cards, node.gpus)


EXERCISE = Exercise(
    name="interconnects.network_share",
    prompt="Say how many bytes per second each GPU of a node can send to other nodes when all of them do.",
    starter=STARTER,
    hint="Networks are sold in bits, memory in bytes: a byte has 8 bits. 3.2 Tb/s are not 3.2 TB/s.",
    points=1,
    pure=True,
    cases=[
        case("one GPU, one card of 8 Gb/s", 1, 8, 1),
        case("one GPU, two cards", 2, 8, 1),
        case("two GPUs, one card", 1, 16, 2),
        *map(published, ("DGX-1V", "DGX A100", "AWS p4d.24xlarge", "DGX H100", "GCP a2-highgpu-8g")),
    ],
    attempt=evidence.call,
    properties={
        "a GPU alone has its cards, in bytes": evidence.is_number(network_share, lambda given: given["num_gpus"] == 1),
        "GPUs share the cards of their node": evidence.is_number(network_share, lambda given: given["num_gpus"] > 1),
    },
)
