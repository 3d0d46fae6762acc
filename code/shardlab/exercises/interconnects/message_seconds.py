"""Exercise: a message on its way, hop after hop."""

from shardlab.costs.facts import nodes
from shardlab.costs.facts.hops import Hop

from .. import evidence
from ..checker import Case, Exercise

Hops = list[tuple[float, float]]

STARTER = '''\
def my_message_seconds(nbytes, hops):
    """Seconds until the last byte of a message has arrived, if its way is free.

    hops: (bytes per second, seconds of latency) of each hop, in order. All hops
    work at the same time, each on what has come so far; the latency is that of
    the slowest hop.
    """
    # one hop after the other: mend it
    return sum(latency + nbytes / rate for rate, latency in hops)
'''


def message_seconds(nbytes: float, hops: Hops) -> float:
    if not hops:
        return 0.0
    return max(latency for _, latency in hops) + nbytes / min(rate for rate, _ in hops)


def case(title: str, nbytes: float, hops: Hops) -> Case:
    return Case(world_size=1, title=title, given={"nbytes": nbytes, "hops": hops})


def between(name: str, a: int, b: int, num_nodes: int = 1) -> Case:
    """100 MB from GPU to GPU."""
    path: tuple[Hop, ...] = nodes.cluster(name, num_nodes).path(a, b)
    hops = [(hop.bandwidth, hop.latency) for hop in path]
    return case(f"GPU {a} to GPU {b}, {num_nodes} x {name}", 1e8, hops)


EXERCISE = Exercise(
    name="interconnects.message_seconds",
    prompt="Say how long a message takes over several hops that all work at the same time.",
    starter=STARTER,
    hint="A pipe is as wide as its narrowest part. And a GPU that sends to itself uses no hop at all.",
    points=2,
    pure=True,
    cases=[
        case("one hop", 100.0, [(50.0, 1.0)]),
        case("two equal hops", 100.0, [(50.0, 1.0), (50.0, 1.0)]),
        case("a narrow hop", 100.0, [(50.0, 1.0), (10.0, 1.0), (50.0, 1.0)]),
        case("a slow hop that is wide", 100.0, [(10.0, 1.0), (50.0, 4.0)]),
        case("nothing to say", 0.0, [(50.0, 1.0), (10.0, 2.0)]),
        case("to itself", 100.0, []),
        between("DGX-1V", 0, 5),
        between("DGX H100", 0, 5),
        between("PCIe box, 100 GbE", 7, 8, 2),
    ],
    attempt=evidence.call,
    properties={
        "one hop takes its latency and its bytes": evidence.is_number(message_seconds, lambda g: len(g["hops"]) == 1),
        "several hops are as fast as the narrowest": evidence.is_number(message_seconds, lambda g: len(g["hops"]) > 1),
        "no hop takes no time": evidence.is_number(message_seconds, lambda g: not g["hops"]),
    },
)
