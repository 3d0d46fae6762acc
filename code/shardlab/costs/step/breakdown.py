"""One training step of any layout on any cluster: what it computes, says and waits for, part by part.

Computing is timed operation by operation (`layer_time`, `kernels`), messages by the links of their axis (`axes`), and
what of them is waited for by what the program hides (`engines`, `exposed`). The pipeline waits as Narayanan et al.
2021, section 2.2 (https://arxiv.org/abs/2104.04473) have it, with unequal stages: all wait for the slowest. Left out:
stragglers, kernel launches that the GPU waits for, reading data, writing checkpoints.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from shardlab.layout import stages

from .. import memory
from ..compute import flops
from ..compute.time_to_train import DAY
from ..facts.hardware import Chip, Link
from ..facts.network import Cluster
from ..memory import shards
from ..training import Training
from . import axes, exposed, layer_time
from .engines import NEMO_2024, Engine
from .kernels import moved_seconds
from .layer_time import LayerTime

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
class Run:
    """What is trained, how it is cut, on what, by what kind of program."""

    training: Training
    cluster: Cluster
    engine: Engine = NEMO_2024
    precision: str | None = None  # of the matrices of the layers: "fp8"; None: what models are trained in

    def __post_init__(self) -> None:
        if self.training.layout.ranks > self.cluster.gpus:
            raise ValueError(
                f"a layout of {self.training.layout.ranks} ranks does not fit on {self.cluster.name} "
                f"with {self.cluster.gpus} GPUs; use fewer ranks or more nodes"
            )

    @property
    def batch(self) -> int:
        """Sequences of one step, on all ranks together."""
        return self.training.layout.dp * self.training.microbatch * self.training.num_microbatches

    @property
    def tokens(self) -> int:
        """Of one step, on all ranks together."""
        return self.batch * self.training.tokens_per_sequence


class Micro(NamedTuple):
    """Seconds of one microbatch on one rank."""

    time: LayerTime
    tensor: float  # a layer's waiting for its peers of tp
    context: float  # of cp
    first: float  # the embedding, forward and backward, with its messages
    last: float  # the head and the loss
    layer: float  # one layer, forward and backward, with its waiting
    forward: float  # what a layer computes in forward
    backward: float  # in backward


class Stages(NamedTuple):
    """How many layers the stages of a pipeline have."""

    layers: int  # of the model
    num_stages: int
    of_first: int
    of_last: int
    most: int  # of those between


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


def microbatch(run: Run, links: dict[str, Link]) -> Micro:
    """One microbatch on one rank. Of the layout only tp, cp and sequence parallelism matter."""
    training, chip = run.training, run.cluster.node.chip
    time = layer_time.layer(training, chip, run.precision)
    tensor = exposed.tensor_seconds(training, run.engine, links["tp"], time)
    context = exposed.context_seconds(training, run.engine, links["cp"], time)
    forward, backward = time.forward.seconds, time.backward_seconds
    message = exposed.all_reduce_seconds(training, links["tp"]) if training.layout.tp > 1 else 0.0
    return Micro(
        time=time,
        tensor=tensor,
        context=context,
        first=sum(layer_time.embedding_seconds(training, chip)) + message,
        last=sum(layer_time.head_seconds(training, chip)) + message,
        layer=forward + backward + tensor + context,
        forward=forward,
        backward=backward,
    )


@cache
def stages_of(num_layers: int, pp: int, chunks: int = 1) -> Stages:
    """The stages of a pipeline."""
    counts = layers_of_stages(num_layers, pp, chunks)
    return Stages(num_layers, pp, counts[0], counts[-1], max(counts[1:-1], default=0))


def layers_of_stages(num_layers: int, pp: int, chunks: int = 1) -> list[int]:
    """As even as possible; or, where only that comes out even, with embedding and head in a layer's place (Llama 3)."""
    if chunks > 1 and num_layers % (pp * chunks):
        share = (num_layers + 2) // pp
        return [share - 1, *[share] * (pp - 2), share - 1]
    return [len(stage) for stage in stages(num_layers, pp)]


def pipeline_seconds(
    micro: Micro, wait: exposed.DataWait, cut: Stages, m: int, chunks: int, naive: bool
) -> float:
    """From the first forward to the last backward, messages between stages left out.

    The slowest stage works on every microbatch; before its first and after its last
    the others work once, on one of their chunks if they have several. Naive: one stage
    after the other works on every microbatch. Exact for equal stages, for GPipe and for
    naive; where the first stages are the slowest, 1F1B takes a little less.
    """
    layer = micro.layer + wait.layer
    first, last = micro.first + wait.rest, micro.last + wait.rest
    if cut.num_stages == 1:
        return m * (cut.layers * layer + micro.first + micro.last + wait.rest)
    whole = cut.layers * layer + first + last
    if naive:
        return m * whole
    ends = cut.of_first * layer + first, cut.of_last * layer + last
    slowest = max(*ends, cut.most * layer)
    return m * slowest + (whole - slowest) / chunks


def message_bytes(training: Training) -> float:
    """Activations of a microbatch between two stages: every rank of tp sends a part, the next puts them together."""
    return training.tokens * training.spec.hidden_size * training.recipe.element / training.layout.tp


def send_seconds(nbytes: float, pp: int, link: Link) -> float:
    """One message between two stages, if there are two."""
    return link.latency + nbytes / link.bandwidth if pp > 1 else 0.0


def sending_seconds(send: float, pp: int, m: int, chunks: int, naive: bool, engine: Engine) -> float:
    """What these messages add: once through the pipeline and back; without overlap, every one of a stage's too."""
    hops = 2 * (pp - 1)
    if naive:
        return m * hops * send
    return (hops if engine.send_overlap else hops + 2 * m * chunks) * send


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
