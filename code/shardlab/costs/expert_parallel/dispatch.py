"""The bytes of expert parallelism: tokens travel to their experts, and results travel back.

A token chooses k of E experts, and each of ep ranks holds E / ep of them. Three ways to send it:

    flat    a copy for every chosen expert: GShard (https://arxiv.org/abs/2006.16668)
    ranks   a copy for every rank that holds chosen experts
    nodes   a copy over the network for every node that holds chosen experts; inside the node NVLink
            passes it on: DeepSeek-V3 (https://arxiv.org/abs/2412.19437), section 3.2.2

Dispatch is the way there and combine the way back. Both are the same in backward, where the
backward of a combine is a dispatch. Routing is uniform: any k experts are as likely as any others.
All quantities are for one layer's forward, as a mean over ranks.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.experts import Experts, distinct
from shardlab.sharding.layout import divisors, listed

from ..collectives import at_once
from ..facts.hardware import ReachedLink
from ..program import BF16, EXPERT_STRATEGIES


@dataclass(frozen=True, kw_only=True)
@checked
class TokenTraffic:
    """One layer's tokens, and the ranks between which they travel."""

    experts: Experts
    hidden_size: Count
    tokens: Count  # of each rank
    ep: Count  # ranks that hold different experts
    per_node: Count = 1  # of these ranks, those that share a node
    most_nodes: Count | None = None  # node-limited routing: nodes that a token may reach
    dispatch_bytes: Positive = BF16  # bytes of one number on the way to the experts
    combine_bytes: Positive = BF16  # and on the way back

    def __post_init__(self) -> None:
        experts = self.experts
        if experts.num_experts % self.ep:
            works = divisors(experts.num_experts)
            raise ValueError(
                f"{experts.num_experts} experts do not split over ep={self.ep} ranks; "
                f"use ep = {listed(works)}"
            )
        if self.ep % self.per_node:
            raise ValueError(
                f"ep={self.ep} ranks do not fill nodes of per_node={self.per_node}; "
                f"use per_node = {listed(divisors(self.ep))}"
            )
        if self.reach * self.experts_per_node < experts.per_token:
            raise ValueError(
                f"{self.reach} nodes of {self.experts_per_node} experts have fewer than "
                f"per_token={experts.per_token}; use a larger most_nodes, or None"
            )

    @property
    def nodes(self) -> int:
        """Nodes over which the ranks are spread."""
        return self.ep // self.per_node

    @property
    def reach(self) -> int:
        """Nodes among which the experts of one token lie."""
        return self.nodes if self.most_nodes is None else min(self.most_nodes, self.nodes)

    @property
    def experts_per_node(self) -> int:
        """Experts that the ranks of one node hold together."""
        return self.experts.num_experts // self.nodes


@checked
def copies(traffic: TokenTraffic, strategy: str) -> dict[str, float]:
    """Count the copies of a token that travel inside nodes, and those that travel across.

    A copy for the token's own rank does not travel. Errors: ValueError for an unknown strategy.
    """
    if strategy not in EXPERT_STRATEGIES:
        known = listed(EXPERT_STRATEGIES)
        raise ValueError(f"unknown strategy {strategy!r}; known: {known}")
    e = traffic
    chosen = e.experts.per_token
    ranks = distinct(e.reach * e.per_node, e.experts_per_node // e.per_node, chosen)
    if strategy == "nodes":
        nodes = distinct(e.reach, e.experts_per_node, chosen)
        inside = ranks * (e.per_node - 1) / e.per_node
        return {"inside": inside, "across": nodes * (e.nodes - 1) / e.nodes}
    made = chosen if strategy == "flat" else ranks
    return {
        "inside": made * (e.per_node - 1) / e.ep,
        "across": made * (e.ep - e.per_node) / e.ep,
    }


@checked
def sent_bytes(traffic: TokenTraffic, strategy: str) -> dict[str, dict[str, float]]:
    """Count the bytes that a rank sends, as dispatch or combine -> inside or across -> bytes.

    A rank receives as many. On two levels it also passes on what came for others in its node.
    """
    numbers = traffic.tokens * traffic.hidden_size
    trips = {"dispatch": traffic.dispatch_bytes, "combine": traffic.combine_bytes}
    counted = copies(traffic, strategy)
    return {
        trip: {level: numbers * element * count for level, count in counted.items()}
        for trip, element in trips.items()
    }


@checked
def travelling(
    traffic: TokenTraffic, strategy: str, *, inside: ReachedLink, across: ReachedLink
) -> dict[str, float]:
    """Time a dispatch and a combine, by level; both levels send at once, on different wires."""
    trips = sent_bytes(traffic, strategy).values()
    return {
        level: sum(at_once(trip[level]).seconds(link) for trip in trips)
        for level, link in (("inside", inside), ("across", across))
    }


@checked
def hiding_width(
    traffic: TokenTraffic,
    strategy: str,
    *,
    rate: Positive,
    bandwidth: Positive,
    level: str = "across",
) -> float:
    """Return the width of an expert from which experts compute longer than tokens travel.

    Experts start when their tokens have come, so those of another microbatch must compute. In
    forward an expert of width f takes 6 h f FLOPs for a token, and c copies of it move
    (dispatch + combine) c h bytes. So f >= (dispatch + combine) / 6 * c / k * rate / bandwidth;
    neither the tokens nor h appear. Backward moves as much in twice the FLOPs.

    rate: FLOP/s of the experts, see `kernels.ordinary_flops`; bandwidth: bytes/s that a rank sends
    on the level.
    """
    counted = copies(traffic, strategy)
    if level not in counted:
        raise ValueError(f"unknown level {level!r}; known: {listed(counted)}")
    share = counted[level] / traffic.experts.per_token
    return (traffic.dispatch_bytes + traffic.combine_bytes) / 6 * share * rate / bandwidth
