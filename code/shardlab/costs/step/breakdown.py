"""One training step of any layout on any cluster: what it computes, sends and waits for, by part.

`layer_time` times the arithmetic operation by operation, `axes` finds the links that messages
travel over, and `exposed` and `replicas` compute how much of each message a rank waits for.
Stages wait for each other as in Narayanan et al. 2021, section 2.2
(https://arxiv.org/abs/2104.04473), with unequal stages. Left out: stragglers, kernel launches that
the GPU waits for, reading data, writing checkpoints.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.files.arguments import checked

from .. import context_parallel, memory
from ..compute import flops
from ..compute.kernels import moved_seconds
from ..facts.hardware import Chip, ReachedLink
from ..memory import shards
from ..training import Training
from ..units import DAY
from . import axes, replicas
from .pipeline import (
    StageLayers,
    pipeline_seconds,
    send_seconds,
    sending_seconds,
    stages_of,
)
from .replicas import DataWait, Holdings, bucket_count
from .run import MicrobatchTime, Run, microbatch

COMMUNICATION = (
    "tensor parallel",
    "context parallel",
    "expert parallel",
    "pipeline messages",
    "data parallel",
    "ZeRO",
)

SUMMARY = {  # fewer parts, for a figure
    "matrices": ("matrices",),
    "attention": ("attention",),
    "norms, embedding, head": ("norms and residuals", "embedding and head"),
    "recomputation": ("recomputation",),
    "update": ("update",),
    "tensor, context, experts": (
        "tensor parallel",
        "context parallel",
        "expert parallel",
        "fullest expert",
    ),
    "data parallel and ZeRO": ("data parallel", "ZeRO"),
    "waiting for stages": ("waiting for stages", "pipeline messages"),
}


@dataclass(frozen=True, kw_only=True)
@checked
class Step:
    """One step of a run, as one rank sees it on average."""

    run: Run
    parts: dict[str, float]  # seconds

    def __post_init__(self) -> None:
        if missing := {part for parts in SUMMARY.values() for part in parts} - self.parts.keys():
            raise ValueError(f"parts have no {', '.join(sorted(missing))}; `step` makes them all")

    @cached_property
    def seconds(self) -> float:
        """Sum all parts: the duration of the step."""
        return sum(self.parts.values())

    @property
    def summary(self) -> dict[str, float]:
        """Add up the same seconds in the fewer parts of SUMMARY."""
        return {name: sum(self.parts[part] for part in parts) for name, parts in SUMMARY.items()}

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all ranks together train on in a second."""
        return self.run.tokens / self.seconds

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one GPU, every pair of tokens counted, as papers on utilisation do."""
        training = self.run.training
        sequence = training.tokens_per_sequence
        counted = flops.model_flops(training.spec, batch=self.run.batch, sequence=sequence)
        return counted / (self.seconds * training.layout.ranks)

    @property
    def mfu(self) -> float:
        """Model FLOPs as a share of the peak in 16 bits."""
        return self.flops_per_gpu / self.run.cluster.node.chip.peak_flops

    @property
    def communication(self) -> float:
        """The share of the step that a rank waits for messages, not counting the bubble."""
        return sum(self.parts[part] for part in COMMUNICATION) / self.seconds

    @property
    def waiting(self) -> float:
        """Seconds for which a rank waits for messages and for other stages."""
        return sum(self.parts[part] for part in (*COMMUNICATION, "waiting for stages"))

    @property
    def computing(self) -> float:
        """Seconds for which a rank computes."""
        return self.seconds - self.waiting

    @property
    def rate(self) -> float:
        """Model FLOP/s while a rank computes: the F of formulas. The update is not counted."""
        return self.flops_per_gpu * self.seconds / (self.computing - self.parts["update"])

    @property
    def bubble(self) -> float:
        """The share of the step that a rank waits for other stages."""
        return self.parts["waiting for stages"] / self.seconds

    def days(self, tokens: float) -> float:
        """Return the days that training on `tokens` takes without a pause."""
        return tokens / self.tokens_per_second / DAY

    @cached_property
    def memory(self) -> float:
        """Bytes on a rank of the fullest stage, the blocks of other ranks of cp included."""
        training = self.run.training
        blocks = context_parallel.at_work(training, training.program.context_strategy)
        return memory.total(training) + blocks

    @property
    def fits(self) -> bool:
        """Whether the fullest rank stays within the chip's memory."""
        return self.memory <= self.run.cluster.node.chip.memory


@checked
def step(run: Run, links: dict[str, ReachedLink] | None = None) -> Step:
    """Predict one step, part by part. links: axis -> its link; None: as `axes.links` finds them."""
    training = run.training
    layout = training.layout
    if training.recomputed_kinds:
        return _mean(run, links)
    links = links or axes.links(run.cluster, layout)
    micro = microbatch(run, links)
    cut = stages_of(training.spec.num_layers, layout.pp, training.chunks)
    held = holdings(training)
    messages = replicas.messages_of_replicas(training, links, held)
    wait = replicas.data_wait(
        messages,
        training.program,
        held,
        *micro.beside(links),
        recomputed=training.recomputation == "full",
    )
    busy = pipeline_seconds(
        micro,
        wait,
        cut,
        num_microbatches=training.num_microbatches,
        chunks=training.chunks,
        schedule=training.schedule,
    )
    sending = sending_seconds(
        send_seconds(training.message_bytes, layout.pp, links["pp"]),
        training.program,
        pp=layout.pp,
        num_microbatches=training.num_microbatches,
        chunks=training.chunks,
        schedule=training.schedule,
        beside=micro.forward * held.layers / training.chunks,
    )
    working = _working(micro, wait, cut, training.num_microbatches)
    return Step(
        run=run,
        parts={
            **working,
            "waiting for stages": max(0.0, busy - sum(working.values())) if layout.pp > 1 else 0.0,
            "pipeline messages": sending,
            "data parallel": wait.end + tied_seconds(training, links["pp"]),
            "update": update_seconds(training, held, run.cluster.node.chip),
        },
    )


def _working(
    micro: MicrobatchTime, wait: DataWait, cut: StageLayers, num_microbatches: int
) -> dict[str, float]:
    """Split the seconds in which an average stage is busy, its messages inside a layer included."""
    time = micro.time
    layers = num_microbatches * cut.total / cut.num_stages
    ends = num_microbatches / cut.num_stages
    rests = ends * min(2, cut.num_stages)  # stages that hold more than layers
    return {
        "matrices": layers * (time.forward.matrices + time.backward.matrices),
        "attention": layers * (time.forward.attention + time.backward.attention),
        "norms and residuals": layers * (time.forward.between + time.backward.between),
        "recomputation": layers * time.recomputed,
        "embedding and head": ends * (micro.first + micro.last),
        "tensor parallel": layers * sum(micro.tensor),
        "context parallel": layers * micro.context,
        "expert parallel": layers * micro.experts,
        "fullest expert": layers * micro.fullest,
        "ZeRO": layers * wait.layer + rests * wait.rest,
    }


def _mean(run: Run, links: dict[str, ReachedLink] | None) -> Step:
    """Predict a step that recomputes some layers: every part is linear in their number."""
    parts: Counter[str] = Counter()
    for share, kind in run.training.recomputed_kinds:
        alike = step(replace(run, training=kind), links)
        parts.update({part: share * seconds for part, seconds in alike.parts.items()})
    return Step(run=run, parts=dict(parts))


@checked
def holdings(training: Training) -> Holdings:
    """Count the parameters on a rank of the first or the last stage, whichever holds more.

    A mixture's dense layers count as what is outside the layers.
    """
    spec = training.spec
    layout = training.layout
    layer = shards.layer_parameters(spec, layout)
    ends = []
    for stage in memory.fullest_stages(training):
        if layers := shards.sparse_layers(spec, layout, stage, training.chunks):
            parts = shards.parameters(spec, layout, stage, training.chunks)
            embedding = parts["token embedding"] + parts["position embedding"]
            ends.append((sum(parts.values()), layers, embedding))
    parameters, layers, first = max(ends)
    return Holdings(
        layer=layer,
        layers=layers,
        rest=parameters - layers * layer,
        experts=shards.layer_routed(spec, layout),
        first=first,
        buckets=bucket_count(training, parameters, layer),
    )


@checked
def update_seconds(training: Training, held: Holdings, chip: Chip) -> float:
    """Time the optimizer, which reads and writes its states; ZeRO cuts them over the replicas."""
    layout = training.layout
    moved = training.recipe.update_traffic + training.program.update_passes
    updated = float(held.parameters)
    if layout.zero:  # each expert has ep times fewer replicas than the rest
        routed = held.experts * held.layers
        updated = (held.parameters - routed + routed * layout.ep) / layout.replicas
    return moved_seconds(moved * updated, chip)


@checked
def tied_seconds(training: Training, link: ReachedLink) -> float:
    """Time the sum of the first and the last stage's gradients of a tied embedding."""
    spec = training.spec
    layout = training.layout
    if not spec.tied or layout.pp == 1:
        return 0.0
    numbers = shards.parameters(spec, layout)["token embedding"]
    return link.latency + training.recipe.gradients * numbers / link.bandwidth
