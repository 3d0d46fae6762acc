"""The hand-over: bytes, messages and seconds until the generator has the trainer's new weights.

Both engines hold the same numbers in two layouts. If the trainer gathers all of them and broadcasts
them, every card carries the whole model. If every rank sends what it holds to whoever wants it, a
card carries what its rank holds, or its share of what all ranks want. The trainer's own layout
decides only who sends. Source: https://lmsys.org/blog/2026-04-29-p2p-update, whose table has the
same bytes for each rank.
"""

from dataclasses import dataclass
from math import ceil

from shardlab.files.arguments import Count, Positive, checked

from ..facts.hardware import Link

WAYS = ("gathered", "pieces")


@dataclass(frozen=True, kw_only=True)
@checked
class HandOver:
    """One hand-over between ranks that each have a card of their own.

    Left out is that norms, routers and latent attention's narrow layers lie whole on each rank of a
    copy, and with ep all but the experts: give `whole` as the ranks' bytes added up to count them.
    """

    whole: Positive  # bytes of all weights, as they travel
    cut: Count  # ranks over which each copy of the generator is cut
    copies: Count = 1
    trainers: Count = 1  # ranks that send, in equal shares
    way: str = "pieces"  # one of WAYS
    # Cards over which a node sends, and another takes in, one gathered model: more than one if the
    # ranks beside the sender join as relays (https://github.com/verl-project/verl/pull/7291).
    doors: Count = 1
    bucket: Positive | None = None  # bytes of a message; None: one message

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"unknown way={self.way!r}; known: {', '.join(WAYS)}")

    @property
    def arrives(self) -> float:
        """Bytes that reach a rank of the generator."""
        return self.whole if self.way == "gathered" else self.whole / self.cut

    @property
    def busiest(self) -> float:
        """Bytes through the busiest card, in its busier direction.

        gathered: bP / doors for any number of ranks, because a ring passes a bucket on.
        pieces: bP max(1 / t, d / N) for d copies over t ranks each, and N ranks that send, if no
        copy passes pieces on.
        """
        if self.way == "gathered":
            return self.whole / self.doors
        return self.whole * max(1 / self.cut, self.copies / self.trainers)

    @property
    def messages(self) -> int:
        """Messages of the busiest card, one after the other, if all but the last are full."""
        return ceil(self.busiest / self.bucket) if self.bucket else 1

    def seconds(self, link: Link) -> float:
        """Return n alpha + bytes / beta, a lower bound: the busiest card never waits.

        Published transfers in pieces bring 3 to 22 GB/s to a rank, over cards sold with 50
        (`published/hand_overs.csv`). From a hundred billion weights on the bound ranks the two
        ways; it times neither.
        """
        return self.messages * link.latency + self.busiest / link.bandwidth
