"""What a trace sends over each hop, and which axis sends it over the busiest hop of every kind."""

from collections.abc import Mapping, Sequence

from shardlab.files.arguments import checked
from shardlab.trace import Event

from ..facts.hops import Hop
from ..facts.network import Cluster
from . import transfers


@checked
def bytes_on(events: Sequence[Event], cluster: Cluster) -> dict[Hop, float]:
    """Count the bytes that all ranks together send across each hop; rank i drives GPU i."""
    laid_out = transfers.lay_out(events, cluster, None, "ring")
    carried = dict.fromkeys(laid_out.hops, 0.0)
    for transfer in laid_out.transfers:
        for index, share in transfer.uses:
            carried[laid_out.hops[index]] += share * transfer.nbytes
    return carried


@checked
def busiest(
    events: Sequence[Event], cluster: Cluster, groups: Mapping[str, Sequence[tuple[int, ...]]]
) -> dict[str, dict[str, float]]:
    """Count each axis's bytes on the busiest hop of every kind, as kind -> axis -> bytes.

    groups: axis -> its groups of ranks, as `layout.groups` lists them; a group of two axes belongs
    to the first.
    """
    axis_of = {tuple(group): axis for axis in reversed(list(groups)) for group in groups[axis]}
    laid_out = transfers.lay_out(events, cluster, None, "ring")
    carried: list[dict[str, float]] = [dict.fromkeys(groups, 0.0) for _ in laid_out.hops]
    for transfer in laid_out.transfers:
        group = events[transfer.events[0]].group
        if group not in axis_of:
            raise ValueError(f"groups name no axis for the ranks {list(group)}; add their group")
        axis = axis_of[group]
        for index, share in transfer.uses:
            carried[index][axis] += share * transfer.nbytes
    found: dict[str, dict[str, float]] = {}
    for hop, by_axis in zip(laid_out.hops, carried, strict=True):
        if sum(by_axis.values()) > sum(found.get(hop.kind, {}).values()):
            found[hop.kind] = by_axis
    return found
