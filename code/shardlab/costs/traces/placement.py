"""One training step of a layout as a program for `replay`: the axes' placement sets its time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardlab import schedules
from shardlab.arguments import Count, checked
from shardlab.layout import AXES_3D, Layout, groups, stages, together
from shardlab.schedules import Action
from shardlab.spec import TransformerSpec
from shardlab.trace import Event

from .. import context_parallel
from ..compute import flops
from ..memory import shards
from .programs import Writer

ELEMENT = 2  # bytes of an activation or a gradient: bf16


@checked
def step(
    spec: TransformerSpec,
    layout: Layout,
    *,
    order: Sequence[str] = AXES_3D,
    batch: Count = 1,
    num_microbatches: Count = 1,
    sequence: Count | None = None,
    layers_at_a_time: Count = 1,
) -> list[Event]:
    """Write one training step of every rank: 1F1B, gradients averaged during the last backward.

    batch: sequences of each replica. A layer all-reduces its activations over tp twice in forward
    and twice in backward; every rank of a stage sends its copy to the rank with the same tp and dp
    coordinates in the next stage. Receives are posted in advance. layers_at_a_time: how many layers
    compute and communicate as one; their latencies count once. Ranks of cp hold parts of each
    sequence in a zig-zag and pass keys and values round a ring: `order` must name that axis, too.
    Errors: ValueError for a layout that does not suit the model, or a batch or sequence that does
    not split.
    """
    layout.check(spec)
    if missing := set(AXES_3D) - set(order):
        raise ValueError(f"order={order} must name every axis; add {', '.join(sorted(missing))}")
    sequence = spec.context_length if sequence is None else sequence
    if batch % num_microbatches or sequence % layout.cp:
        raise ValueError(
            f"batch={batch} in {num_microbatches} microbatches, {sequence} tokens over "
            f"cp={layout.cp}: use a batch and a sequence that split evenly"
        )
    samples = batch // num_microbatches
    work = flops.forward(spec, batch=samples, sequence=sequence)
    nbytes = ELEMENT * spec.tokens(samples, sequence) // layout.cp * spec.hidden_size
    size = {"length": sequence, "ranks": layout.cp, "tp": layout.tp, "batch": samples}
    attention = context_parallel.attention(spec, **size, element=ELEMENT)
    planned = schedules.make("1F1B", num_stages=layout.pp, num_microbatches=num_microbatches)
    by_axis = {**groups(layout, order), "replicas": together(layout, ("dp", "cp"), order)}
    writers = []
    for rank in range(layout.ranks):
        mine = {
            axis: next(group for group in every if rank in group)
            for axis, every in by_axis.items()
        }
        stage = mine["pp"].index(rank)
        parts = _parts(spec, layout, stage, work, layers_at_a_time)
        program = _Rank(rank, mine, parts, nbytes, attention)
        program.run(planned.orders[stage])
        writers.append(program.writer)
    return [event for writer in writers for event in writer.events]


class LayerGroup(NamedTuple):
    """Layers that compute and communicate as one; or, with 0 layers, what is outside the layers."""

    layers: int
    flops: float  # of its forward on one rank, without scores
    scores: float  # FLOPs of queries by keys and scores by values, likewise
    parameters: float  # on one rank


def _parts(
    spec: TransformerSpec, layout: Layout, stage: int, work: Mapping[str, int], together: int
) -> list[LayerGroup]:
    """List what a stage is made of, in order of forward.

    A tied head has no parameters of its own beside the embedding, whose gradient is complete only
    at the end of backward. work: FLOPs of one microbatch's forward.
    """
    held = shards.parameters(spec, layout, stage)
    num_layers = len(stages(spec.num_layers, layout.pp)[stage])
    head = work["head"] if stage == layout.pp - 1 else 0
    ranks = layout.tp * layout.cp
    scores = work["scores"] / spec.num_layers / ranks
    per_layer = (sum(work.values()) - work["head"]) / spec.num_layers / ranks - scores
    embedding = held["token embedding"] + held["position embedding"]
    parameters = (sum(held.values()) - embedding - held["head"]) / num_layers
    counts = [min(together, num_layers - first) for first in range(0, num_layers, together)]
    layers = [LayerGroup(n, n * per_layer, n * scores, n * parameters) for n in counts]
    first = LayerGroup(0, 0.0, 0.0, embedding)
    last = LayerGroup(0, head / ranks, 0.0, held["head"])
    return [part for part in (first, *layers, last) if part.flops or part.parameters]


class _Rank:
    """The program of one rank."""

    def __init__(
        self,
        rank: int,
        groups: Mapping[str, tuple[int, ...]],
        parts: Sequence[LayerGroup],
        nbytes: int,
        attention: context_parallel.Attention,
    ) -> None:
        self.writer = Writer(rank)
        self.groups = groups
        self.parts = parts
        self.nbytes = nbytes  # of the activations of one microbatch
        self.attention = attention  # of one microbatch and one layer
        pipeline = groups["pp"]
        stage = pipeline.index(rank)
        self.before = pipeline[stage - 1] if stage else None
        self.after = pipeline[stage + 1] if stage + 1 < len(pipeline) else None
        self.sent: list[int] = []

    def run(self, actions: Sequence[Action]) -> None:
        """Write the actions of a stage in order, and average gradients during the last backward."""
        expected = {action: self._expect(action) for action in actions}
        last = next(action for action in reversed(actions) if action.kind == "B")
        averaged = []
        for action in actions:
            self.writer.wait(expected[action])
            for part in self.parts if action.kind == "F" else reversed(self.parts):
                self._compute(action.kind, part)
                if action == last and len(self.groups["replicas"]) > 1 and part.parameters:
                    nbytes = ELEMENT * part.parameters
                    summed = self.writer.collective("all_reduce", nbytes, self.groups["replicas"])
                    averaged.append(summed)
            self._send(self.after if action.kind == "F" else self.before)
        self.writer.wait([*averaged, *self.sent])

    def _compute(self, kind: str, part: LayerGroup) -> None:
        """Compute one group of layers.

        Under tensor parallelism in halves, each followed by an all-reduce.
        """
        op = "forward" if kind == "F" else "backward"
        times = 1 if kind == "F" else 2
        if len(self.groups.get("cp", ())) > 1 and part.layers:
            self._go_round(op, times * part.scores, part.layers)
            work = times * part.flops
        else:
            work = times * (part.flops + part.scores)
        if not part.layers or len(self.groups["tp"]) == 1:
            return self.writer.compute(work, op)
        for _ in range(2):
            self.writer.compute(work / 2, op)
            nbytes = part.layers * self.nbytes
            summed = self.writer.collective("all_reduce", nbytes, self.groups["tp"])
            self.writer.wait([summed])

    def _go_round(self, op: str, work: float, layers: int) -> None:
        """Compute attention in equal turns; what travels round the ring does so beside a turn."""
        ring = self.groups["cp"]
        place = ring.index(self.writer.rank)
        after, before = ring[(place + 1) % len(ring)], ring[place - 1]
        for hop, hidden in context_parallel.hops(self.attention, backward=op == "backward"):
            moving = []
            if hop:
                nbytes = round(layers * hop)
                moving = [self.writer.receive(nbytes, before, ring)]
                moving.append(self.writer.send(nbytes, after, ring))
            if hidden:
                self.writer.compute(work / len(ring), op)
            self.writer.wait(moving)

    def _expect(self, action: Action) -> list[int]:
        source = self.before if action.kind == "F" else self.after
        if source is None:
            return []
        return [self.writer.receive(self.nbytes, source, self.groups["pp"])]

    def _send(self, to: int | None) -> None:
        if to is not None:
            self.sent.append(self.writer.send(self.nbytes, to, self.groups["pp"]))
