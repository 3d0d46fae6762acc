"""A run's step as a trace for `replay`: every rank's computing, messages and waits, in order.

`breakdown.step` is its closed form for ranks in their default order; a replay shows what another
order, or another network, does to the same step.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from shardlab import schedules
from shardlab.files.arguments import Count, checked
from shardlab.schedules import Action
from shardlab.sharding.layout import AXES_3D, groups, together
from shardlab.trace import Event

from .. import context_parallel
from ..memory import shards
from ..traces.writing import Writer
from ..training import Training
from . import layer_time
from .breakdown import holdings, update_seconds
from .run import Run
from .zero_messages import ZeroMessages


@checked
def trace(run: Run, order: Sequence[str] = AXES_3D, layers_at_a_time: Count = 1) -> list[Event]:
    """Write one training step of every rank; computing takes the seconds of the run's chip.

    A layer waits for its sums over tp. Every rank of a stage sends its copy, or its slice, to the
    rank with the same other coordinates in the next stage; receives are posted in advance. Ranks of
    cp hold parts of each sequence in a zig-zag and pass keys and values round a ring: `order` must
    name that axis, too. Gradients are averaged a bucket at a time during the last backward, or as
    ZeRO has it; then every rank updates as many parameters as the fullest one holds.
    layers_at_a_time: how many layers compute and communicate as one; the latencies of tp and cp
    count once. Errors: ValueError for experts, chunks, programs that overlap something else, and
    an order that lacks an axis.
    """
    training = run.training
    layout = training.layout
    _check(training, order)
    planned = schedules.make(
        training.schedule, num_stages=layout.pp, num_microbatches=training.num_microbatches
    )
    update = update_seconds(training, holdings(training), run.cluster.node.chip)
    by_axis = {**groups(layout, order), "replicas": together(layout, ("dp", "cp"), order)}
    parts = [_parts(run, stage, layers_at_a_time) for stage in range(layout.pp)]
    writers = []
    for rank in range(layout.ranks):
        mine = {
            axis: next(group for group in every if rank in group) for axis, every in by_axis.items()
        }
        stage = mine["pp"].index(rank)
        one = _Rank(rank, mine, parts[stage], training)
        one.run(planned.orders[stage])
        one.zero.update(update)
        writers.append(one.writer)
    return [event for writer in writers for event in writer.events]


def _check(training: Training, order: Sequence[str]) -> None:
    how = training.program
    if training.recomputed_kinds:
        raise ValueError(
            f"recomputed_layers={training.recomputed_layers}: a program is written for layers that "
            "are all alike; use recomputed_layers=None"
        )
    if training.spec.experts or training.chunks > 1:
        raise ValueError(
            "a program is written for dense models, one chunk on each stage; use chunks=1 and a "
            "model without experts"
        )
    if training.spec.halves == 1:
        raise ValueError("a program is written for layers of two halves; leave blocks_at out")
    hidden = how.data_overlap == ("average", "layers") and how.context_overlap and how.send_overlap
    if how.tensor_overlap != "none" or how.loss == "whole" or not hidden:
        raise ValueError(f"{how.name} overlaps other messages than this program; use BOOK")
    if missing := set(AXES_3D) - set(order):
        raise ValueError(f"order={order} must name every axis; add {', '.join(sorted(missing))}")


class LayerGroup(NamedTuple):
    """Layers that compute and communicate as one; or, with 0 layers, what is outside the layers."""

    layers: int
    forward: float  # seconds on one rank, without attention
    backward: float  # likewise, without what is recomputed
    attention: tuple[float, float]  # seconds of its forward and its backward
    gradients: float  # bytes on one rank


def _parts(run: Run, stage: int, together: int) -> list[LayerGroup]:
    """List what a stage is made of, in order of forward.

    A tied head has no parameters of its own beside the embedding on the same stage, whose gradient
    is complete only at the end of backward.
    """
    training = run.training
    chip = run.cluster.node.chip
    element = training.recipe.gradients
    held = shards.parameters(training.spec, training.layout, stage)
    embedding = held["token embedding"] + held["position embedding"]
    num_layers = training.layers_of(stage)
    gradients = element * (sum(held.values()) - embedding - held["head"]) / num_layers
    time = layer_time.layer(training, chip)
    attention = time.forward.attention, time.backward.attention
    forward = time.forward.seconds - attention[0]
    backward = time.backward.seconds - attention[1]
    if training.recomputation != "full":
        backward += time.recomputed
    counts = [min(together, num_layers - first) for first in range(0, num_layers, together)]
    scores, back = attention
    parts = [
        LayerGroup(n, n * forward, n * backward, (n * scores, n * back), n * gradients)
        for n in counts
    ]
    if stage == 0:
        seconds = layer_time.embedding_seconds(training, chip)
        parts = [LayerGroup(0, *seconds, (0.0, 0.0), element * embedding), *parts]
    if stage == training.layout.pp - 1:
        seconds = layer_time.head_seconds(training, chip)
        parts.append(LayerGroup(0, *seconds, (0.0, 0.0), element * held["head"]))
    return parts


class _Rank:
    """The program of one rank."""

    def __init__(
        self,
        rank: int,
        groups: Mapping[str, tuple[int, ...]],
        parts: Sequence[LayerGroup],
        training: Training,
    ) -> None:
        self.writer = Writer(rank)
        self.groups = groups
        self.parts = parts
        self.training = training
        numbers = training.tokens * training.spec.hidden_size
        self.nbytes = training.recipe.element * numbers  # of the activations of one microbatch
        self.message = round(training.message_bytes)
        pipeline = groups["pp"]
        stage = pipeline.index(rank)
        self.before = pipeline[stage - 1] if stage else None
        self.after = pipeline[stage + 1] if stage + 1 < len(pipeline) else None
        # Whether it shares an embedding with the other end of the pipeline.
        self.tied = training.spec.tied and (self.before is None) != (self.after is None)
        self.left: list[int] = []  # messages in flight that the step must wait for
        counts = [part.layers for part in parts if part.layers]
        self.zero = ZeroMessages(self.writer, training, stage, groups["replicas"], counts)

    def run(self, actions: Sequence[Action]) -> None:
        """Write the actions of a stage in order, and average gradients during the last backward."""
        expected = {action: self._expect(action) for action in actions}
        last = next(action for action in reversed(actions) if action.kind == "B")
        for action in actions:
            self.writer.wait(expected[action])
            self.zero.begin(action.kind)
            if action.kind == "F":
                for part in self.parts:
                    self.zero.enter(part.layers)
                    self._forward(part)
                self._send(self.after)
                continue
            for part in reversed(self.parts):
                self.zero.enter(part.layers)
                self._backward(part, action == last)
                self.zero.leave(part.layers)
            self._send(self.before)
            self.zero.finish()
        if self.tied:
            self._tie()
        self.writer.wait(self.left)

    def _forward(self, part: LayerGroup) -> None:
        if part.layers:
            self._attend(part, "forward")
            for _ in range(2):
                self._enter(part)
                self.writer.work(part.forward / 2, "forward")
                self._leave(part)
            return
        self.writer.work(part.forward, "forward")
        if part is self.parts[0]:  # ranks of tp hold different words
            self._sum("all_reduce")

    def _backward(self, part: LayerGroup, last: bool) -> None:
        gradients = part.gradients if last else 0.0
        if part.layers:
            if self.training.recomputation == "full":
                self._forward(part)
            for _ in range(2):
                self._enter(part, again=not self.training.program.keeps_gathered)
                self._average(gradients / 2, part.backward / 2)
                self._leave(part)
            return self._attend(part, "backward")
        self.writer.work(part.backward, "backward")
        if part is not self.parts[0]:
            self._sum("all_reduce")
        if not self.tied:
            self._average(gradients)

    def _enter(self, part: LayerGroup, *, again: bool = False) -> None:
        """Gather the slices of sequences that half a layer needs."""
        if self.training.layout.sequence_parallel:
            for _ in range(1 + again):
                self._sum("all_gather", part.layers)

    def _leave(self, part: LayerGroup) -> None:
        """Sum up the results of half a layer."""
        sliced = self.training.layout.sequence_parallel
        self._sum("reduce_scatter" if sliced else "all_reduce", part.layers)

    def _average(self, gradients: float, seconds: float = 0.0) -> None:
        """Average gradients a bucket at a time, while the `seconds` pass that complete them."""
        replicas = self.groups["replicas"]
        if len(replicas) == 1 or not gradients or self.training.layout.zero:
            return self.writer.work(seconds, "backward")
        buckets = ceil(gradients / (self.training.program.bucket_bytes or gradients))
        for _ in range(buckets):
            self.writer.work(seconds / buckets, "backward")
            self.left.append(self.writer.collective("all_reduce", gradients / buckets, replicas))

    def _sum(self, op: str, layers: int = 1) -> None:
        """Wait for activations of ranks of tp, if there are any."""
        if len(self.groups["tp"]) > 1:
            summed = self.writer.collective(op, layers * self.nbytes, self.groups["tp"])
            self.writer.wait([summed])

    def _attend(self, part: LayerGroup, op: str) -> None:
        """Compute attention in equal turns; what travels round the ring does so beside a turn."""
        ring = self.groups.get("cp", (self.writer.rank,))
        place = ring.index(self.writer.rank)
        after, before = ring[(place + 1) % len(ring)], ring[place - 1]
        seconds = part.attention[op == "backward"]
        layer = context_parallel.of(self.training)
        for sent, hidden in context_parallel.ring_steps(layer, backward=op == "backward"):
            moving = []
            if sent:
                nbytes = round(part.layers * sent)
                moving = [self.writer.receive(nbytes, before, ring)]
                moving.append(self.writer.send(nbytes, after, ring))
            if hidden:
                self.writer.work(seconds / len(ring), op)
            self.writer.wait(moving)

    def _tie(self) -> None:
        """Add the gradients that the first and the last stage have for a tied embedding."""
        pipeline = self.groups["pp"]
        first = self.before is None
        other = pipeline[-1 if first else 0]
        table = shards.parameters(self.training.spec, self.training.layout)["token embedding"]
        nbytes = round(self.training.recipe.gradients * table)
        received = self.writer.receive(nbytes, other, pipeline)
        self.writer.wait([received, self.writer.send(nbytes, other, pipeline)])
        self._average(self.parts[0 if first else -1].gradients)

    def _expect(self, action: Action) -> list[int]:
        source = self.before if action.kind == "F" else self.after
        if source is None:
            return []
        return [self.writer.receive(self.message, source, self.groups["pp"])]

    def _send(self, to: int | None) -> None:
        if to is not None:
            self.left.append(self.writer.send(self.message, to, self.groups["pp"]))
