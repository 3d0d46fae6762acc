"""One training step of any layout on any cluster: what it computes, says and waits for, part by part.

Computing is timed operation by operation (`layer_time`, `kernels`), messages by the links of their axis (`axes`), and
what of them is waited for by what the program hides (`engines`, `exposed`). The pipeline waits as Narayanan et al.
2021, section 2.2 (https://arxiv.org/abs/2104.04473) have it, with unequal stages: all wait for the slowest. Left out:
stragglers, kernel launches that the GPU waits for, reading data, writing checkpoints.
"""

from dataclasses import dataclass
from functools import cached_property

from shardlab.layout import stages

from .. import memory
from ..compute import flops
from ..compute.time_to_train import DAY
from ..facts.hardware import Chip, Link
from ..memory import shards
from ..training import Training
from . import axes, exposed
from .kernels import moved_seconds
from .pipeline import message_bytes, pipeline_seconds, send_seconds, sending_seconds, stages_of
from .run import Run, microbatch

COMMUNICATION = ("tensor parallel", "context parallel", "pipeline messages", "data parallel", "ZeRO")

SUMMARY = {  # fewer parts, for a figure
    "matrices": ("matrices",),
    "attention": ("attention",),
    "norms, embedding, head": ("norms and residuals", "embedding and head"),
    "recomputation": ("recomputation",),
    "update": ("update",),
    "tensor and context parallel": ("tensor parallel", "context parallel"),
    "data parallel and ZeRO": ("data parallel", "ZeRO"),
    "waiting for stages": ("waiting for stages", "pipeline messages"),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a run, as one rank sees it on average."""

    run: Run
    parts: dict[str, float]  # seconds

    @cached_property
    def seconds(self) -> float:
        """Duration of the step."""
        return sum(self.parts.values())

    @property
    def summary(self) -> dict[str, float]:
        """The same seconds in fewer parts."""
        return {name: sum(self.parts[part] for part in parts) for name, parts in SUMMARY.items()}

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.run.tokens / self.seconds

    @property
    def flops_per_gpu(self) -> float:
        """Model FLOP/s of one GPU, every pair of tokens counted, as papers on utilisation do."""
        training = self.run.training
        counted = flops.model_flops(training.spec, batch=self.run.batch, sequence=training.tokens_per_sequence)
        return counted / (self.seconds * training.layout.ranks)

    @property
    def mfu(self) -> float:
        """Model FLOPs as a share of the peak in 16 bits."""
        return self.flops_per_gpu / self.run.cluster.node.chip.peak_flops

    @property
    def communication(self) -> float:
        """The share of the step that a rank waits for messages, the pipeline's bubble not among them."""
        return sum(self.parts[part] for part in COMMUNICATION) / self.seconds

    @property
    def bubble(self) -> float:
        """The share of the step that a rank waits for other stages."""
        return self.parts["waiting for stages"] / self.seconds

    def days(self, tokens: float) -> float:
        """To train on so many tokens, without a pause."""
        return tokens / self.tokens_per_second / DAY

    @cached_property
    def memory(self) -> float:
        """Bytes on a rank of the fullest stage."""
        return memory.total(self.run.training)

    @property
    def fits(self) -> bool:
        """Whether they are within the chip's capacity."""
        return self.memory <= self.run.cluster.node.chip.memory


def step(run: Run) -> Step:
    """What one step takes."""
    training, layout, m = run.training, run.training.layout, run.training.num_microbatches
    links = axes.links(run.cluster, layout)
    micro, cut = microbatch(run, links), stages_of(training.spec.num_layers, layout.pp, training.chunks)
    held = holdings(training)
    messages = exposed.data_messages(layout, training.recipe, links["replicas"], held)
    wait = exposed.data_wait(messages, run.engine, held.layers, micro.forward, micro.backward)
    naive = training.schedule == "naive"
    busy = pipeline_seconds(micro, wait, cut, m, training.chunks, naive)
    send = send_seconds(message_bytes(training), layout.pp, links["pp"])
    layers, ends = m * cut.layers / cut.num_stages, m / cut.num_stages
    time = micro.time
    computed = {
        "matrices": layers * (time.forward.matrices + time.backward.matrices),
        "attention": layers * (time.forward.attention + time.backward.attention),
        "norms and residuals": layers * (time.forward.between + time.backward.between),
        "recomputation": layers * time.recomputed,
        "embedding and head": ends * (micro.first + micro.last),
        "tensor parallel": layers * micro.tensor,
        "context parallel": layers * micro.context,
        "ZeRO": layers * wait.layer + ends * min(2, cut.num_stages) * wait.rest,
    }
    return Step(
        run=run,
        parts={
            **computed,
            "waiting for stages": max(0.0, busy - sum(computed.values())),
            "pipeline messages": sending_seconds(send, layout.pp, m, training.chunks, naive, run.engine),
            "data parallel": wait.end + tied_seconds(training, links["pp"]),
            "update": update_seconds(training, held, run.cluster.node.chip),
        },
    )


def holdings(training: Training) -> exposed.Holdings:
    """Parameters on a rank of the first or the last stage, whichever holds more."""
    spec, layout = training.spec, training.layout
    layer = shards.layer_parameters(spec, layout)
    ends = []
    for stage in {0, layout.pp - 1}:
        layers = len(stages(spec.num_layers, layout.pp)[stage])
        ends.append((sum(shards.parameters(spec, layout, stage).values()), layers))
    parameters, layers = max(ends)
    return exposed.Holdings(layer=layer, layers=layers, rest=parameters - layers * layer)


def update_seconds(training: Training, held: exposed.Holdings, chip: Chip) -> float:
    """The optimizer reads and writes its states; ZeRO cuts them."""
    mine = held.parameters / (training.layout.replicas if training.layout.zero else 1)
    return moved_seconds(training.recipe.update_traffic * mine, chip)


def tied_seconds(training: Training, link: Link) -> float:
    """First and last stage add up their gradients of a tied embedding."""
    spec, layout = training.spec, training.layout
    if not spec.tied or layout.pp == 1:
        return 0.0
    numbers = shards.parameters(spec, layout)["token embedding"]
    return link.latency + training.recipe.gradients * numbers / link.bandwidth
