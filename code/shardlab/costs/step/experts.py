"""How long a rank waits for tokens that travel to experts and back, and for the fullest rank.

`expert_parallel` counts what travels; `Program` decides which way tokens
take and what computes meanwhile. All ranks wait for the one whose experts have the most
tokens, `Training.imbalance` times the mean: in the products of its experts and in its messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from shardlab.files.arguments import Positive, checked

from .. import expert_parallel
from ..expert_parallel import TokenTraffic
from ..facts.hardware import ReachedLink
from ..facts.network import Cluster
from ..program import EXPERT_OVERLAPS
from ..training import Training
from . import axes, layer_time
from .layer_time import LayerTime


class ExpertWait(NamedTuple):
    """Seconds for which experts make a rank wait in one layer, forward and backward."""

    messages: float  # dispatch and combine, if all experts have equally many tokens
    fullest: float  # what it adds that one rank's experts have more


@checked
def waiting(
    training: Training,
    cluster: Cluster,
    links: Mapping[str, ReachedLink],
    time: LayerTime,
) -> ExpertWait:
    """Time one layer's waiting. Full recomputation dispatches and combines a second time.

    Where some layers are mixtures alone, the others hide nothing: it is their waiting, and the mean
    over all layers. time: of the training's (mean) layer, see `layer_time.layer`.
    """
    if training.spec.experts is None:
        return ExpertWait(0.0, 0.0)
    share, mixture = _mixtures(training)
    if share < 1:
        alone = layer_time.layer(mixture, cluster.node.chip)
        wait = waiting(mixture, cluster, links, alone)
        return ExpertWait(share * wait.messages, share * wait.fullest)
    travels = trip_seconds(training, cluster, links)
    again = training.recomputation == "full"
    hiding = EXPERT_OVERLAPS[training.program.expert_overlap]
    even = uneven = 0.0
    for beside in _passes(time):
        even += _exposed(travels, beside, hiding, 1.0)
        uneven += _exposed(travels, beside, hiding, training.imbalance)
    if again:
        even += travels
        uneven += training.imbalance * travels
    routed = sum(time.routed) + again * time.routed[0]
    return ExpertWait(even, (training.imbalance - 1) * routed + uneven - even)


@checked
def forward(training: Training, cluster: Cluster) -> dict[str, float]:
    """Time the forward of one layer on its fullest rank, by part: as in a step, without tp and cp.

    Where some layers are mixtures alone, it is one of those.

    "attention" has everything that no expert computes, norms and the router, too.
    """
    _, training = _mixtures(training)
    even, _ = _passes(layer_time.layer(training, cluster.node.chip))
    parts = {**even, "routed experts": training.imbalance * even["routed experts"]}
    travels = trip_seconds(training, cluster, axes.links(cluster, training.layout))
    hiding = EXPERT_OVERLAPS[training.program.expert_overlap]
    exposed = _exposed(travels, even, hiding, training.imbalance)
    hidden = training.imbalance * travels - exposed
    return {**parts, "all-to-all, hidden": hidden, "all-to-all, exposed": exposed}


@checked
def trip_seconds(training: Training, cluster: Cluster, links: Mapping[str, ReachedLink]) -> float:
    """Time a dispatch and a combine of one microbatch, hidden or not; 0 where no token travels."""
    if training.layout.expert_ranks == 1:
        return 0.0
    if missing := {"ep inside", "ep across"} - links.keys():
        raise ValueError(
            f"links have no {' and '.join(sorted(missing))}; use those of `axes.links`"
        )
    levels = {level: links[f"ep {level}"] for level in ("inside", "across")}
    each = token_traffic(training, cluster)
    travels = expert_parallel.travelling(each, training.program.expert_strategy, **levels)
    return max(travels.values())


@checked
def token_traffic(training: Training, cluster: Cluster) -> TokenTraffic:
    """Return what travels among the ranks that hold different experts.

    Ranks of tp all send the same tokens, each to its part of an expert. Where experts stay whole,
    each sends the tokens of its slice, to the ranks of ep and tp together.
    Errors: ValueError for a model without experts.
    """
    spec = training.spec
    if spec.experts is None:
        raise ValueError("spec has no experts; use one with experts=Experts(...)")
    free = TokenTraffic(
        experts=spec.experts,
        hidden_size=spec.hidden_size,
        tokens=training.dispatched_tokens,
        ep=training.layout.expert_ranks,
        per_node=axes.per_node(cluster, training.layout),
        dispatch_bytes=training.program.expert_bytes,
    )
    most = training.program.expert_nodes
    if most is None:
        return free
    return replace(free, most_nodes=max(most, ceil(spec.experts.per_token / free.experts_per_node)))


def _mixtures(training: Training) -> tuple[float, Training]:
    """Return the share of layers that have experts, and the run with such layers alone."""
    apart = training.layer_kinds if training.spec.halves == 1 else []
    return apart[-1] if apart else (1.0, training)


def _passes(time: LayerTime) -> list[dict[str, float]]:
    """Return what forward and backward compute, each by the parts of EXPERT_OVERLAPS."""
    whole = time.forward.seconds, time.backward.seconds
    return [
        {
            "attention": seconds - routed - shared,
            "shared experts": shared,
            "routed experts": routed,
        }
        for seconds, routed, shared in zip(whole, time.routed, time.shared, strict=True)
    ]


def _exposed(
    travels: float, beside: Mapping[str, float], hiding: Sequence[str], imbalance: Positive
) -> float:
    """Time what nothing hides of one dispatch and one combine on the fullest rank."""
    fuller = {**beside, "routed experts": imbalance * beside["routed experts"]}
    hides = sum(fuller[part] for part in hiding)
    return max(0.0, imbalance * travels - hides)
