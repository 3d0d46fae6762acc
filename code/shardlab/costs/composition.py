"""The bytes that ranks send along each axis of a layout in one step, and those that leave a node.

All methods together, as `ranks.train` composes them; Narayanan et al. 2021, section 3
(https://arxiv.org/abs/2104.04473).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from shardlab import trace
from shardlab.files.arguments import Count, checked, within
from shardlab.sharding import cuts
from shardlab.sharding.layout import AXES_3D, Layout, coordinates, groups
from shardlab.trace import Event

from . import tensor_parallel, zero
from .memory import shards
from .training import Training

ALL, NUMBER = "all", 8  # the group of all ranks; bytes of loss and norm (float64)
PER_TOKEN = 3  # numbers that a cut vocabulary sends: maximum, sum, the target's logit
Sent = dict[str, dict[str, float]]


@checked
def sent(training: Training, stage: int = 0) -> Sent:
    """Count the bytes that a rank of `stage` sends in one step, as axis -> purpose -> bytes.

    Collectives go around rings; a rank receives as many bytes as it sends. `ranks.train` recomputes
    nothing, and keeps gathered inputs (`keeps_gathered`). "all" holds the loss and the gradients'
    norm, which every rank receives. Errors: ValueError for cp above 1.
    """
    layout = training.layout
    if layout.cp > 1:
        raise ValueError(
            f"cp={layout.cp}: keys and values are not counted here; use cp=1, and add "
            "context_parallel.sent_bytes for each layer and microbatch"
        )
    within("stage", stage, layout.pp)
    share = (layout.ranks - 1) / layout.ranks
    return {
        "tp": _tensor(training, stage),
        "dp": zero.sent_bytes(training, stage, hold=training.keeps_whole(stage)),
        "pp": _pipeline(training, stage),
        ALL: {"loss and norm": 2 * 2 * share * NUMBER},
    }


@checked
def by_axis(events: Iterable[Event], layout: Layout) -> dict[str, float]:
    """Count the bytes that one rank's ledger put on the wire in a run, as axis -> bytes.

    A message belongs to the axis whose group contains all its ranks, and to "all" where no axis
    does. Where one group of an axis contains every rank, messages to all ranks belong to that axis.
    """
    found = dict.fromkeys((*AXES_3D, ALL), 0.0)
    every = [(axis, set(group)) for axis, each in groups(layout, AXES_3D).items() for group in each]
    for event in trace.communication(events):
        axis = next((axis for axis, group in every if set(event.group) <= group), ALL)
        found[axis] += trace.wire_bytes(event)
    return found


@checked
def leaving(
    training: Training, per_node: Count, order: Sequence[str] = AXES_3D
) -> dict[str, float]:
    """Count the bytes of one step that leave the node that sends the most, as axis -> bytes.

    Ranks fill the nodes in order, `per_node` in each; see `messages`.
    """
    nodes: dict[int, dict[str, float]] = {}
    for axis, each in messages(training, order).items():
        for edge in (edge for edges in each.values() for edge in edges):
            if edge.crosses(per_node):
                node = nodes.setdefault(edge.source // per_node, dict.fromkeys(AXES_3D, 0.0))
                node[axis] += edge.nbytes
    nothing = dict.fromkeys(AXES_3D, 0.0)
    return max(nodes.values(), key=lambda sums: sum(sums.values()), default=nothing)


class Edge(NamedTuple):
    """The bytes that one rank of a group sends to another in a step."""

    source: int
    to: int
    nbytes: float

    @checked
    def crosses(self, per_node: Count) -> bool:
        """Return whether the two are in different nodes."""
        return self.source // per_node != self.to // per_node


@checked
def messages(
    training: Training, order: Sequence[str] = AXES_3D
) -> dict[str, dict[tuple[int, ...], list[Edge]]]:
    """List what neighbours send each other in one step, as axis -> group -> edges.

    Rings pass through the ranks of a group in order, and stages send to their neighbours.
    """
    layout = training.layout
    every = [sent(training, stage) for stage in range(layout.pp)]
    found: dict[str, dict[tuple[int, ...], list[Edge]]] = {}
    for axis, each in groups(layout, order).items():
        stages = [coordinates(group[0], layout, order)["pp"] for group in each]
        found[axis] = {
            group: _stages(group, every)
            if axis == "pp"
            else _ring(group, sum(every[stage][axis].values()))
            for group, stage in zip(each, stages, strict=True)
        }
    return found


def _ring(group: Sequence[int], nbytes: float) -> list[Edge]:
    return [Edge(a, group[(i + 1) % len(group)], nbytes) for i, a in enumerate(group)]


def _stages(group: Sequence[int], every: Sequence[Sent]) -> list[Edge]:
    edges = []
    for stage, (rank, sent) in enumerate(zip(group, every, strict=True)):
        parts = sent["pp"]
        edges.append(Edge(rank, group[(stage + 1) % len(group)], parts["activations"]))
        edges.append(Edge(rank, group[stage - 1], parts["their gradients"]))
        edges.append(Edge(rank, group[-1 if stage == 0 else 0], parts["tied embeddings"]))
    return [edge for edge in edges if edge.nbytes]


def _pipeline(training: Training, stage: int) -> dict[str, float]:
    layout = training.layout
    m = training.num_microbatches
    chunks = training.chunks
    first = stage == 0
    last = stage == layout.pp - 1
    tied = training.spec.tied and layout.pp > 1 and (first or last)
    table = shards.parameters(training.spec, layout)["token embedding"]
    return {
        "activations": m * (chunks - last) * training.message_bytes,
        "their gradients": m * (chunks - first) * training.message_bytes,
        "tied embeddings": tied * float(training.recipe.gradients * table),
    }


def _tensor(training: Training, stage: int) -> dict[str, float]:
    """Count all-reduces of activations: 2 (t - 1)/t times the activations' bytes.

    `tensor_parallel.sent_bytes` counts what a layer sends.
    """
    spec = training.spec
    layout = training.layout
    m = training.num_microbatches
    count = training.layers_of(stage)
    share = 2 * (layout.tp - 1) / layout.tp
    first = stage == 0
    last = stage == layout.pp - 1
    numbers = training.tokens * training.recipe.element
    once = m * share * numbers * spec.hidden_size
    held = {
        name: cut
        for name, cut in cuts.ends(spec, layout.tp).items()
        if (first if "embedding" in name else last)
    }
    kinds = spec.layer_kinds or ((1.0, spec),)
    block = sum(part * _copies(training, cuts.block(kind, layout.tp)) for part, kind in kinds)
    return {
        "layers": m * count * tensor_parallel.sent_bytes(training),
        "embedding and head": (first + last) * once,
        "loss": last * m * share * PER_TOKEN * numbers,
        "gradients of copies": m * (count * block + _copies(training, held)),
    }


def _copies(training: Training, held: Mapping[str, cuts.Cut]) -> float:
    """Count the bytes that one backward sends for parameters that several ranks hold."""
    layout = training.layout
    total = 0.0
    for cut in held.values():
        ranks = layout.tp * layout.sequence_parallel if cut.dim is None else cut.holders
        if ranks > 1:
            total += 2 * (ranks - 1) / ranks * training.recipe.gradients * prod(cut.local_shape)
    return total
