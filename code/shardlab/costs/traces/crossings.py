"""Whose traffic crosses what: the bytes of each axis of a layout through the busiest hop of every kind."""

from collections.abc import Mapping, Sequence

from shardlab.trace import Event

from ..facts.network import Cluster
from . import transfers


def busiest(
    events: Sequence[Event], cluster: Cluster, groups: Mapping[str, Sequence[tuple[int, ...]]]
) -> dict[str, dict[str, float]]:
    """Kind of link -> axis -> bytes, of the one hop of that kind that carries most in all.

    groups: axis -> its groups of ranks, as `layout.groups` lists them; a group of two axes belongs to the first.
    """
    axis_of = {group: axis for axis in reversed(list(groups)) for group in groups[axis]}
    laid_out = transfers.plan(events, cluster, None, "ring")
    carried: list[dict[str, float]] = [dict.fromkeys(groups, 0.0) for _ in laid_out.hops]
    for transfer in laid_out.transfers:
        axis = axis_of[events[transfer.events[0]].group]
        for index, share in transfer.uses:
            carried[index][axis] += share * transfer.nbytes
    found: dict[str, dict[str, float]] = {}
    for hop, by_axis in zip(laid_out.hops, carried, strict=True):
        if sum(by_axis.values()) > sum(found.get(hop.kind, {}).values()):
            found[hop.kind] = by_axis
    return found
