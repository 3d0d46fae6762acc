"""The link of each axis of a layout: what its rings run at while the rings of all its groups run at the same time.

Ranks are numbered in the default order of `layout`, so that tp stays inside a node as long as it can.
"""

from dataclasses import replace
from functools import cache
from math import gcd

from shardlab.layout import Layout, strides

from ..facts.hardware import LINK_UTILISATION, Link
from ..facts.hops import Hop
from ..facts.network import Cluster
from ..traces import traffic


def links(cluster: Cluster, layout: Layout) -> dict[str, Link]:
    """The link of each axis; that of "replicas" joins the ranks of cp and dp, which hold the same parameters."""
    step = strides(layout)
    return {
        "tp": link(cluster, step["tp"], layout.tp),
        "cp": link(cluster, step["cp"], layout.cp),
        "replicas": link(cluster, step["cp"], layout.replicas),
        "pp": neighbour(cluster, step["pp"], layout.pp),
    }


def link(cluster: Cluster, stride: int, size: int) -> Link:
    """What a ring runs at through `size` GPUs that are `stride` apart, at the share of the rate that collectives reach.

    A group that leaves its node has as many GPUs in each of its nodes as fill both evenly.
    """
    room = max(1, cluster.node.gpus // stride)
    if size <= room or cluster.num_nodes == 1:
        return _rings(cluster, 1, stride, min(size, room))
    return _rings(cluster, 2, stride, gcd(size, room))


def neighbour(cluster: Cluster, stride: int, size: int) -> Link:
    """What a message runs at from a GPU to the one `stride` further, on the slowest way that `size` stages have."""
    gpus = cluster.node.gpus
    if stride * size <= gpus or cluster.num_nodes == 1:
        return _rings(cluster, 1, stride, min(2, max(1, gpus // stride)))
    return _rings(cluster, 2, max(stride, gpus), 1)


def fits_nodes(cluster: Cluster, tp: int) -> bool:
    """Whether groups of tp neighbours share nodes evenly, or fill several."""
    gpus = cluster.node.gpus
    return gpus % tp == 0 or (tp % gpus == 0 and cluster.num_nodes > 1)


@cache
def _rings(cluster: Cluster, num_nodes: int, stride: int, inside: int) -> Link:
    """The rings of all groups at once: the busiest hop sets their pace. Two nodes stand for any number of them."""
    gpus = cluster.node.gpus
    few = replace(cluster, num_nodes=num_nodes)
    first = [start + offset for start in range(0, gpus, stride * inside) for offset in range(min(stride, gpus))]
    within = [[gpu + stride * member for member in range(inside)] for gpu in first]
    groups = [
        [node * gpus + gpu for node in range(num_nodes) for gpu in group] for group in within if group[-1] < gpus
    ]
    shares: dict[Hop, float] = {}
    for group in groups:
        for hop, share in traffic.rings(few, group).shares.items():
            shares[hop] = shares.get(hop, 0.0) + share
    alone = traffic.as_link(few, groups[0] if len(groups[0]) > 1 else range(min(2, gpus)))
    rate = min((hop.bandwidth / share for hop, share in shares.items()), default=alone.bandwidth)
    return replace(alone, name=f"{len(groups)} groups in {few.name}", bandwidth=LINK_UTILISATION * rate)
