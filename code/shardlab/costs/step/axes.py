"""The link of each axis of a layout: the rate of its rings while all its groups run at once.

Ranks are numbered in the default order of `layout`, so that tp stays inside a node as long as it
can.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import gcd

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import Layout, strides

from ..collectives.fabric import card_rate
from ..facts.hardware import ReachedLink
from ..facts.hops import Hop
from ..facts.network import Cluster
from ..traces import traffic


@checked
def links(cluster: Cluster, layout: Layout) -> dict[str, ReachedLink]:
    """Return the link of each axis.

    That of "replicas" joins the ranks of cp and dp, which hold the same parameters. With experts
    on several ranks, neighbours along dp, and along tp if experts stay whole, there are also
    "ep inside" a node and "ep across" nodes, and "expert replicas" joins the ranks that hold the
    same experts.
    """
    stride = strides(layout)
    more = _of_experts(cluster, layout, stride) if layout.expert_ranks > 1 else {}
    return {
        **more,
        "tp": link(cluster, stride["tp"], layout.tp),
        "cp": link(cluster, stride["cp"], layout.cp),
        "replicas": link(cluster, stride["cp"], layout.replicas),
        "pp": neighbour(cluster, stride["pp"], layout.pp),
    }


@checked
def link(cluster: Cluster, stride: Count, size: Count) -> ReachedLink:
    """Return the link of a ring through `size` GPUs that are `stride` apart.

    Its bandwidth is the share that collectives reach. A group that leaves its node has as many GPUs
    in each of its nodes as fill both evenly.
    """
    room = max(1, cluster.node.gpus // stride)
    if size <= room or cluster.num_nodes == 1:
        return _rings(cluster, 1, stride, min(size, room))
    return _behind(cluster, _rings(cluster, 2, stride, gcd(size, room)), stride, size)


@checked
def neighbour(cluster: Cluster, stride: Count, size: Count) -> ReachedLink:
    """Return the slowest link from a GPU to the one `stride` further, among `size` stages."""
    gpus = cluster.node.gpus
    if stride * size <= gpus or cluster.num_nodes == 1:
        return _rings(cluster, 1, stride, min(2, max(1, gpus // stride)))
    return _behind(cluster, _rings(cluster, 2, max(stride, gpus), 1), stride, size)


def _of_experts(cluster: Cluster, layout: Layout, stride: dict[str, int]) -> dict[str, ReachedLink]:
    """Return the links of experts. Across nodes, all ranks of a node send at once.

    With whole experts and cp, a group is several runs of neighbours; it is taken for a single one.
    """
    inside = per_node(cluster, layout)
    folded = layout.expert_ranks > layout.ep
    apart = max(stride["dp"] * inside // (layout.expert_ranks // layout.ep), cluster.node.gpus)
    return {
        "ep inside": link(cluster, 1 if folded else stride["dp"], inside),
        "ep across": link(cluster, apart, layout.expert_ranks // inside),
        "expert replicas": link(cluster, stride["cp"] * layout.ep, layout.replicas // layout.ep),
    }


@checked
def per_node(cluster: Cluster, layout: Layout) -> int:
    """Count the ranks with different experts that share a node: as many as fill nodes evenly."""
    if cluster.num_nodes == 1:
        return layout.expert_ranks
    gpus = cluster.node.gpus
    inside = gcd(layout.ep, max(1, gpus // strides(layout)["dp"]))
    return inside * gcd(layout.expert_ranks // layout.ep, gpus)


@checked
def fits_nodes(cluster: Cluster, tp: Count) -> bool:
    """Tell whether groups of `tp` neighbours share nodes evenly, or fill several."""
    gpus = cluster.node.gpus
    return gpus % tp == 0 or (tp % gpus == 0 and cluster.num_nodes > 1)


def _behind(cluster: Cluster, link: ReachedLink, stride: int, size: int) -> ReachedLink:
    """Slow a link down by the fabric: all cards send at once, to a node so far away."""
    fabric = cluster.fabric
    gpus = cluster.node.gpus
    if fabric is None or stride * size <= fabric.pod * gpus:
        return link
    share = min(1.0, max(1, stride // gpus) / fabric.pod)
    return replace(link, bandwidth=card_rate(link.bandwidth, share, fabric.narrowing))


@cache
def _rings(cluster: Cluster, num_nodes: int, stride: int, inside: int) -> ReachedLink:
    """Return the link of every ring while the rings of all groups run; the busiest hop decides.

    inside: GPUs of a group in each node. Two nodes stand for any number of nodes.
    """
    gpus = cluster.node.gpus
    few = _few(cluster, num_nodes)
    groups = _groups(gpus, num_nodes, stride, inside)
    shares: dict[Hop, float] = {}
    for group in groups:
        for hop, share in traffic.rings(few, group).shares.items():
            shares[hop] = shares.get(hop, 0.0) + share
    one_group = groups[0] if len(groups[0]) > 1 else range(min(2, gpus))
    alone = traffic.as_link(few, one_group)
    rates = (hop.bandwidth / share for hop, share in shares.items())
    rate = min(rates, default=alone.bandwidth)
    name = f"{len(groups)} groups in {few.name}"
    return replace(alone, name=name, bandwidth=rate).reached


@cache
def _few(cluster: Cluster, num_nodes: int) -> Cluster:
    """Return the same nodes without a fabric: one cluster, which knows its paths, for all rings."""
    return replace(cluster, num_nodes=num_nodes, fabric=None)


def _groups(gpus: int, num_nodes: int, stride: int, inside: int) -> list[Sequence[int]]:
    """List the groups that start in the first of `num_nodes` nodes of `gpus` GPUs each."""
    groups: list[Sequence[int]] = []
    for start in range(0, gpus, stride * inside):
        for offset in range(min(stride, gpus)):
            local = [start + offset + stride * member for member in range(inside)]
            if local[-1] < gpus:
                groups.append([node * gpus + gpu for node in range(num_nodes) for gpu in local])
    return groups
