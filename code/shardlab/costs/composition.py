"""What each rank sends along each axis of a layout in one step, and what of it leaves its node.

All methods at once, as `ranks.train` composes them; Narayanan et al. 2021, section 3
(https://arxiv.org/abs/2104.04473).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from shardlab import cuts, trace
from shardlab.layout import AXES_3D, Layout, coordinates, groups, stages
from shardlab.trace import Event

from . import zero
from .training import Training

ALL, NUMBER = "all", 8  # the group of all ranks; bytes of the loss, and of the norm, which are in float64
PER_TOKEN = 3  # numbers that a cut vocabulary says for each token: a maximum, a sum, the target's logit
Sent = dict[str, dict[str, float]]


def sent(training: Training, stage: int = 0) -> Sent:
    """Axis -> what for -> bytes that a rank of the stage sends in one step, around rings; as many arrive.

    With recomputation="none". "all": the loss and the gradients' norm, which everybody gets to know.
    """
    layout = training.layout
    share = (layout.ranks - 1) / layout.ranks
    return {
        "tp": _tensor(training, stage),
        "dp": _data(training, stage),
        "pp": _pipeline(training, stage),
        ALL: {"loss and norm": 2 * 2 * share * NUMBER},
    }


def by_axis(events: Iterable[Event], layout: Layout, order: Sequence[str] = AXES_3D) -> dict[str, float]:
    """The same, counted: axis -> bytes that one rank's ledger says must go on the wire.

    A message belongs to the axis whose group has all its ranks; what belongs to none is of all ranks. Where all ranks
    are one group of an axis, that has it.
    """
    found = dict.fromkeys((*AXES_3D, ALL), 0.0)
    every = [(axis, set(group)) for axis, each in groups(layout, order).items() for group in each]
    for event in trace.communication(events):
        axis = next((axis for axis, group in every if set(event.group) <= group), ALL)
        found[axis] += trace.wire_bytes(event)
    return found


def leaving(training: Training, per_node: int, order: Sequence[str] = AXES_3D) -> dict[str, float]:
    """Axis -> bytes of one step that leave the node that sends most; nodes are filled in the order of the ranks.

    Rings go through the ranks of a group in their order, and stages send to their neighbours.
    """
    layout = training.layout
    every = [sent(training, stage) for stage in range(layout.pp)]
    nodes: dict[int, dict[str, float]] = {}
    for axis, each in groups(layout, order).items():
        for group in each:
            for rank, nbytes in _edges(training, axis, group, per_node, every, order):
                node = nodes.setdefault(rank // per_node, dict.fromkeys(AXES_3D, 0.0))
                node[axis] += nbytes
    return max(nodes.values(), key=lambda by: sum(by.values()), default=dict.fromkeys(AXES_3D, 0.0))


def _edges(
    training: Training, axis: str, group: Sequence[int], per_node: int, every: Sequence[Sent], order: Sequence[str]
) -> Iterable[tuple[int, float]]:
    """(rank, bytes) of every message, or ring, of a group that goes to another node."""
    size, message = len(group), training.num_microbatches * training.chunks * _message(training)
    if axis == "pp":
        pairs = [(a, b, message) for a, b in pairwise(group)]
        tied = every[0]["pp"]["tied embeddings"]
        wrapped = message * (training.chunks - 1) / training.chunks
        pairs += [(group[0], group[-1], tied), (group[-1], group[0], wrapped)]
        pairs = [pair for a, b, nbytes in pairs for pair in ((a, b, nbytes), (b, a, nbytes))]
    else:
        stage = coordinates(group[0], training.layout, order)["pp"]
        pairs = [(a, group[(i + 1) % size], sum(every[stage][axis].values())) for i, a in enumerate(group)]
    return [(a, nbytes) for a, b, nbytes in pairs if a // per_node != b // per_node]


def _data(training: Training, stage: int) -> dict[str, float]:
    """As in `zero`; but embedding and head are gathered by themselves, so that stage 3 gathers them again, too."""
    layout = training.layout
    parts = zero.sent_bytes(training, stage, hold=_holds(training, stage))
    ends = 0 if training.spec.tied and layout.pp == 1 else (stage == 0) + (stage == layout.pp - 1)
    if "gather in backward" in parts:
        whole = training.num_microbatches * training.recipe.parameters * ends * _table(training)
        parts["gather in backward"] += whole * (layout.replicas - 1) / layout.replicas
    return parts


def _table(training: Training) -> int:
    """Numbers of the embedding's table on a rank; the head has as many."""
    return prod(cuts.ends(training.spec, training.layout.tp)["embedding.tokens.weight"].local_shape)


def _holds(training: Training, stage: int) -> bool:
    """Whether gradients stay whole until the step: both ends of a tied model add theirs up first; so do chunks."""
    layout = training.layout
    tied = training.spec.tied and layout.pp > 1 and stage in (0, layout.pp - 1)
    return tied or training.chunks > 1


def _message(training: Training) -> float:
    """Bytes between two stages: every rank of tp sends all activations of a microbatch, or its slice of them."""
    layout = training.layout
    whole = training.tokens * training.spec.hidden_size * training.recipe.element
    return whole / (layout.tp if layout.sequence_parallel else 1)


def _pipeline(training: Training, stage: int) -> dict[str, float]:
    layout, m, chunks = training.layout, training.num_microbatches, training.chunks
    first, last = stage == 0, stage == layout.pp - 1
    tied = training.spec.tied and layout.pp > 1 and (first or last)
    return {
        "activations": m * (chunks - last) * _message(training),
        "their gradients": m * (chunks - first) * _message(training),
        "tied embeddings": tied * float(training.recipe.gradients * _table(training)),
    }


def _tensor(training: Training, stage: int) -> dict[str, float]:
    """An all-reduce of activations, or its two halves under sequence parallelism: 2 (t - 1)/t times their bytes."""
    spec, layout, m = training.spec, training.layout, training.num_microbatches
    count, share = len(stages(spec.num_layers, layout.pp)[stage]), 2 * (layout.tp - 1) / layout.tp
    first, last = stage == 0, stage == layout.pp - 1
    numbers = training.tokens * training.recipe.element
    once = m * share * numbers * spec.hidden_size
    held = {name: cut for name, cut in cuts.ends(spec, layout.tp).items() if (last, first)["embedding" in name]}
    return {
        "layers": 4 * count * once,
        "embedding and head": (first + last) * once,
        "loss": last * m * share * PER_TOKEN * numbers,
        "gradients of copies": m * (count * _copies(training, cuts.block(spec, layout.tp)) + _copies(training, held)),
    }


def _copies(training: Training, held: Mapping[str, cuts.Cut]) -> float:
    """Bytes that one backward sends for what several ranks hold and use for different things."""
    layout, total = training.layout, 0.0
    for cut in held.values():
        ranks = layout.tp * layout.sequence_parallel if cut.dim is None else cut.holders
        if ranks > 1:
            total += 2 * (ranks - 1) / ranks * training.recipe.gradients * prod(cut.local_shape)
    return total
