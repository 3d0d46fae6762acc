"""The switches behind the cards: leaves, spines, rails, and the cables between them.

    spines           o cables down for each cable up
    |    |
    leaf leaf        of a pod: with rails one for each card of a node, else one for all its nodes
    ||   ||
    card card

A message between two cards of one leaf passes that leaf alone. Every other one goes up to the
spines and down again, and shares the cables there with all others of its leaf. Their latency is
counted with the cards'.
"""

from dataclasses import dataclass, field

from shardlab.files.arguments import Count, Positive, Share, checked

from .hops import Hop


@dataclass(frozen=True, kw_only=True)
@checked
class Fabric:
    """The network of a cluster, as plain data. Clusters without one have a full fat tree."""

    name: str
    pod: Count  # nodes whose cards end at the same leaves
    oversubscription: Positive = 1.0  # cables into a leaf for each cable to the spines
    rails: bool = False  # card i of every node of a pod ends at leaf i
    # An assumption: the share of the cables' rate that is left where connections choose cables by a
    # hash and some share one. 1: every packet finds an idle cable.
    without_collisions: Share = 1.0
    source: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.oversubscription < 1:
            raise ValueError(
                f"oversubscription={self.oversubscription} must be at least 1: "
                "cables into a leaf for each cable out of it"
            )

    @property
    def narrowing(self) -> float:
        """The rate of all cards of a leaf, divided by what its cables to the spines carry."""
        return self.oversubscription / self.without_collisions

    def crosses(self, nodes: tuple[int, int], cards: tuple[str, str]) -> bool:
        """Tell whether a message passes a spine: from one node's card to another node's."""
        here, there = (node // self.pod for node in nodes)
        return here != there or (self.rails and cards[0] != cards[1])

    def hops(
        self, nodes: tuple[int, int], cards: tuple[str, str], num_cards: Count, rate: Positive
    ) -> tuple[Hop, ...]:
        """List the hops through the spines.

        num_cards, rate: of each node, and the bytes/s of all its cards.
        """
        if not self.crosses(nodes, cards):
            return ()
        below = self.pod / (num_cards if self.rails else 1)
        bandwidth = below * rate / self.narrowing
        up, down = (
            f"pod {node // self.pod} leaf" + (f" of {card}" if self.rails else "")
            for node, card in zip(nodes, cards, strict=True)
        )
        names = f"{up} → spines", f"spines → {down}"
        return tuple(
            Hop(name=name, kind="network", bandwidth=bandwidth, latency=0.0) for name in names
        )


LLAMA_3 = Fabric(
    name="Llama 3 405B",
    pod=384,
    oversubscription=7,
    source=(
        "Llama Team 2024, section 3.3.1 (https://arxiv.org/abs/2407.21783): pods of 3,072 GPUs "
        "with full bisection, 1:7 between them"
    ),
)
