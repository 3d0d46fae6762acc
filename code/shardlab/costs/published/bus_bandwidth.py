"""Bus bandwidths that others measured on real machines, and what the wiring lets one expect.

"busbw" is that of nccl-tests: bytes per second times the share that a ring would pass on, which for
an all-reduce of n ranks is 2(n-1)/n
(https://github.com/NVIDIA/nccl-tests/blob/v2.13.10/doc/PERFORMANCE.md). Where a switch adds, every
GPU sends and receives only (n+1)/n of the buffer, so that busbw may exceed the rate of the links.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from ..facts import nodes
from ..traces import traffic
from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class Measured:
    """What one benchmark printed for its longest messages."""

    node: str  # name in `nodes`
    num_nodes: Count = 1
    nodes_told: bool = True  # whether the source gives the number of nodes; else we assume two
    gpus: Count = 8  # in each node
    op: str = "all_reduce"
    adds: bool = False  # whether the switch adds (NVLS)
    busbw: Positive  # bytes/s
    source: str

    @property
    def name(self) -> str:
        """A short description of what was measured."""
        node = nodes.node(self.node)
        chip = node.chip.name.split()[0]
        if self.num_nodes > 1:
            count = f"{self.num_nodes} nodes" if self.nodes_told else "nodes"
            return f"{count} of {chip}, {8e-12 * node.network_bandwidth:.1f} Tb/s"
        return f"{self.gpus} {chip}, {'switch adds' if self.adds else self.op.replace('_', '-')}"


@checked
def bound(measured: Measured) -> float:
    """Return the busbw that the slowest link of the path allows at its full rate.

    Errors: ValueError where no switch adds.
    """
    cluster = nodes.cluster(measured.node, measured.num_nodes)
    first = range(0, cluster.gpus, cluster.node.gpus)
    gpus = [start + gpu for start in first for gpu in range(measured.gpus)]
    if not measured.adds:
        return traffic.rings(cluster, gpus).bandwidth
    load = traffic.switch(cluster, gpus)
    count = len(gpus)
    if load is None:
        raise ValueError(f"in {cluster.name} no switch adds")
    return load.bandwidth * count / (count + 1) * 2 * (count - 1) / count


PUBLISHED = rows("bus_bandwidth", Measured)
