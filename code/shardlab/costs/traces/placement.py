"""One training step of a layout as a program, to be played on a cluster: where its axes lie decides what it takes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardlab import schedules
from shardlab.layout import AXES_3D, Layout, groups, stages
from shardlab.schedules import Action
from shardlab.spec import TransformerSpec
from shardlab.trace import Event

from ..compute import flops
from ..memory import shards
from .programs import Writer

ELEMENT = 2  # bytes of an activation or a gradient: bf16


def step(
    spec: TransformerSpec,
    layout: Layout,
    *,
    order: Sequence[str] = AXES_3D,
    batch: int = 1,
    num_microbatches: int = 1,
    sequence: int | None = None,
    layers_at_a_time: int = 1,
) -> list[Event]:
    """One training step of every rank, for `replay`: 1F1B in the pipeline, gradients averaged during the last backward.

    batch: sequences of each replica. A layer all-reduces its activations twice in forward and twice in backward among
    the ranks of tp; every rank of a stage sends its copy to its like in the next one. Receives are posted in advance.
    layers_at_a_time: so many layers compute and talk as one; their latencies count once.
    Errors: ValueError for a layout that does not suit the model, or a batch that does not split.
    """
    layout.check(spec)
    if batch % num_microbatches or layout.cp > 1:
        raise ValueError(f"batch={batch} in {num_microbatches} microbatches, cp={layout.cp}: cut evenly, with cp=1")
    sequence = spec.context_length if sequence is None else sequence
    work = flops.forward(spec, batch=batch // num_microbatches, sequence=sequence)
    nbytes = ELEMENT * spec.tokens(batch // num_microbatches, sequence) * spec.hidden_size
    planned = schedules.make("1F1B", num_stages=layout.pp, num_microbatches=num_microbatches)
    by_axis = groups(layout, order)
    writers = []
    for rank in range(layout.ranks):
        mine = {axis: next(group for group in by_axis[axis] if rank in group) for axis in AXES_3D}
        stage = mine["pp"].index(rank)
        program = _Rank(rank, mine, _parts(spec, layout, stage, work, layers_at_a_time), nbytes)
        program.run(planned.orders[stage])
        writers.append(program.writer)
    return [event for writer in writers for event in writer.events]


class Part(NamedTuple):
    """Layers that compute and talk as one; or none, for what stands before and after the layers."""

    layers: int
    flops: float  # of its forward on one rank
    parameters: float  # on one rank


def _parts(
    spec: TransformerSpec, layout: Layout, stage: int, work: Mapping[str, int], together: int
) -> list[Part]:
    """What a stage is made of, in order of its forward. work: FLOPs of a microbatch's forward through the model."""
    held, num_layers = shards.parameters(spec, layout, stage), len(stages(spec.num_layers, layout.pp)[stage])
    head = work["head"] if stage == layout.pp - 1 else 0
    per_layer = (sum(work.values()) - work["head"]) / spec.num_layers / layout.tp
    ends = held["token embedding"] + held["position embedding"] + held["head"]
    parameters = (sum(held.values()) - ends) / num_layers
    cut = [min(together, num_layers - first) for first in range(0, num_layers, together)]
    return [*(Part(n, n * per_layer, n * parameters) for n in cut), Part(0, head / layout.tp, ends)]


class _Rank:
    """Writes what one rank does."""

    def __init__(
        self, rank: int, groups: Mapping[str, tuple[int, ...]], parts: Sequence[Part], nbytes: int
    ) -> None:
        self.writer, self.groups, self.parts = Writer(rank), groups, parts
        self.nbytes = nbytes  # of the activations of one microbatch
        stage, pipeline = groups["pp"].index(rank), groups["pp"]
        self.before = pipeline[stage - 1] if stage else None
        self.after = pipeline[stage + 1] if stage + 1 < len(pipeline) else None
        self.sent: list[int] = []

    def run(self, actions: Sequence[Action]) -> None:
        expected = {action: self._expect(action) for action in actions}
        last = next(action for action in reversed(actions) if action.kind == "B")
        averaged = []
        for action in actions:
            self.writer.wait(expected[action])
            for part in self.parts if action.kind == "F" else reversed(self.parts):
                self._compute(action.kind, part)
                if action == last and len(self.groups["dp"]) > 1 and part.parameters:
                    averaged.append(self.writer.collective("all_reduce", ELEMENT * part.parameters, self.groups["dp"]))
            self._send(self.after if action.kind == "F" else self.before)
        self.writer.wait([*averaged, *self.sent])

    def _compute(self, kind: str, part: Part) -> None:
        """With tensor parallelism in halves, attention and feed-forward block, each followed by an all-reduce."""
        op, work = ("forward", part.flops) if kind == "F" else ("backward", 2 * part.flops)
        if not part.layers or len(self.groups["tp"]) == 1:
            return self.writer.compute(work, op)
        for _ in range(2):
            self.writer.compute(work / 2, op)
            self.writer.wait([self.writer.collective("all_reduce", part.layers * self.nbytes, self.groups["tp"])])

    def _expect(self, action: Action) -> list[int]:
        source = self.before if action.kind == "F" else self.after
        return [] if source is None else [self.writer.receive(self.nbytes, source, self.groups["pp"])]

    def _send(self, to: int | None) -> None:
        if to is not None:
            self.sent.append(self.writer.send(self.nbytes, to, self.groups["pp"]))
