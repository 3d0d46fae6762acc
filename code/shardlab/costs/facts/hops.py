"""The path of a message, hop by hop: one direction of each wire it takes through a `network`."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.files.arguments import Positive, checked


@dataclass(frozen=True, kw_only=True)
@checked
class Hop:
    """One direction of one wire."""

    name: str  # "node 1: GPU 3 → NVSwitch"
    kind: str  # that of the link
    bandwidth: Positive  # bytes/s
    latency: float  # seconds


@checked
def bandwidth(path: Sequence[Hop]) -> float:
    """Return the bytes/s of one message that has the path to itself."""
    return min((hop.bandwidth for hop in path), default=float("inf"))


@checked
def parts(path: Sequence[Hop]) -> list[str]:
    """Name the parts that a message passes, without their node: GPU 0, NVSwitch, GPU 1.

    The list is empty for a path of no hops.
    """
    ends = [hop.name.split(": ")[-1].split(" → ") for hop in path]
    return [start for start, _ in ends] + [goal for _, goal in ends[-1:]]


@checked
def latency(path: Sequence[Hop]) -> float:
    """Return the seconds before the first byte arrives.

    It is the latency of the slowest hop, because NCCL's figures hold for a whole step.
    """
    return max((hop.latency for hop in path), default=0.0)
