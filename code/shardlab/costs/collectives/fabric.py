"""The network behind the cards: which share of the bytes passes a spine, and the rate that is left.

Nodes whose cards end at the same leaf switches form a pod. A leaf passes everything on inside its
pod; to the spines it has 1/oversubscription of the bandwidth of its cards. With oversubscription 1
this is a full fat tree (Leiserson 1985, doi:10.1109/TC.1985.6312192). No two messages choose the
same cable while another one is idle.
"""

from shardlab.files.arguments import Count, checked


@checked
def crossing(nodes: Count, pod: Count, *, neighbours: bool) -> float:
    """Return the share of the bytes between nodes that leaves a pod of `pod` nodes.

    neighbours: every node sends to the next one only, as in a ring that visits the nodes in order;
    otherwise every node sends equally much to every other one. Errors: ValueError for fewer than
    two nodes, or nodes that do not fill their pods.
    """
    if nodes < 2 or (nodes > pod and nodes % pod):  # noqa: PLR2004
        raise ValueError(
            f"{nodes} nodes in pods of {pod}: give at least 2 nodes that fill their pods"
        )
    if nodes <= pod:
        return 0.0
    return 1 / pod if neighbours else (nodes - pod) / (nodes - 1)


@checked
def card_rate(rate: float, share: float, oversubscription: float) -> float:
    """Return the bytes/s that every card reaches when all cards send at once.

    rate: of a card alone, bytes/s. share: of its bytes that pass a spine.
    """
    return rate / max(1.0, oversubscription * share)
