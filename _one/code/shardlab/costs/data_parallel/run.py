"""One data-parallel training step, predicted: each rank holds the model and averages its gradients.

Li et al. 2020, "PyTorch Distributed" (https://arxiv.org/abs/2006.15704). Computation takes its
FLOPs at a stated share of the chip's peak, the update reads and writes its states at the full
memory bandwidth, and gradients are averaged bucket by bucket, by rings or trees, over links of
which a stated share is reached.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.arguments import Count, Positive, Share, checked, within
from shardlab.layout import Layout
from shardlab.spec import TransformerSpec
from shardlab.trace import Event

from .. import collectives, memory
from ..compute import flops
from ..facts import models
from ..facts.hardware import LINK_UTILISATION, Chip, Link
from ..facts.recipes import MIXED, Recipe
from ..training import Training
from ..units import MiB
from . import overlap


@dataclass(frozen=True, kw_only=True)
@checked
class DataParallelRun:
    """A model, the chips that train replicas of it, and the link that joins them."""

    spec: TransformerSpec
    chip: Chip
    link: Link  # of every hop; where hops differ, `collectives.ring_through_servers`
    ranks: Count = 1
    batch_per_rank: Count = 1  # sequences
    num_microbatches: Count = 1  # gradients add up over them and are averaged during the last one
    sequence: Count | None = None  # tokens; None: the model's context length
    # The share of the peak reached while computing. Over whole steps Llama 3 405B reached 38 to 43
    # % (Llama Team 2024, Table 4, https://arxiv.org/abs/2407.21783).
    utilisation: Share = 0.4
    link_utilisation: Share = LINK_UTILISATION
    bucket_bytes: Positive = 25 * MiB  # torch's DDP
    overlap: bool = True
    recipe: Recipe = MIXED
    attention: str = "flash"  # whether the scores are stored: see `training.ATTENTIONS`

    def __post_init__(self) -> None:
        if self.batch_per_rank % self.num_microbatches:
            raise ValueError(
                f"a batch of {self.batch_per_rank} per rank does not split into "
                f"{self.num_microbatches} microbatches; use a divisor of {self.batch_per_rank}"
            )
        _ = self.tokens_per_rank  # raises where there are none

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of one sample."""
        return self.spec.context_length if self.sequence is None else self.sequence

    @property
    def tokens_per_rank(self) -> int:
        """Tokens that each rank processes in one step."""
        return self.spec.tokens(self.batch_per_rank, self.tokens_per_sequence)

    @property
    def tokens(self) -> int:
        """Tokens that all ranks together process in one step."""
        return self.ranks * self.tokens_per_rank

    @property
    def tokens_needed(self) -> float:
        """Tokens per rank above which backward can hide the all-reduce, on many ranks.

        4 P T / F seconds of backward must cover the all-reduce's 2 g P / beta, for g bytes a
        gradient; with 16-bit gradients that is T = F / beta. Gradients that add up over
        microbatches have only the last microbatch's backward to hide behind.
        """
        flops_reached = self.utilisation * self.chip.peak_flops
        bytes_reached = self.link_utilisation * self.link.bandwidth
        return self.recipe.gradients / 2 * flops_reached / bytes_reached

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the model, all of them on every rank."""
        return models.num_parameters(self.spec)

    @property
    def gradient_bytes(self) -> float:
        """Bytes to average in every step."""
        return float(self.recipe.gradients * self.num_parameters)


@dataclass(frozen=True, kw_only=True)
@checked
class DataParallelStep:
    """One step of a run. Seconds and bytes are of one rank; all ranks are alike."""

    run: DataParallelRun
    forward: float
    backward: float
    update: float  # the optimizer's step
    # Seconds from the start of the last microbatch's backward.
    messages: tuple[overlap.Message, ...]
    memory: dict[str, float]

    @property
    def communication(self) -> float:
        """Seconds for which the network is busy."""
        return sum(message.end - message.start for message in self.messages)

    @property
    def exposed(self) -> float:
        """Seconds for which the rank waits after backward for the last all-reduce."""
        last_backward = self.backward / self.run.num_microbatches
        return max(0.0, self.messages[-1].end - last_backward) if self.messages else 0.0

    @property
    def compute(self) -> float:
        """Seconds of the same step without communication."""
        return self.forward + self.backward + self.update

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.compute + self.exposed

    @property
    def efficiency(self) -> float:
        """Throughput as a share of that of as many ranks without communication: 1 is perfect."""
        return self.compute / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all ranks together train on in a second."""
        return self.run.tokens / self.seconds

    @property
    def parts(self) -> dict[str, float]:
        """The step's duration, split: sums to `seconds`."""
        return {
            "forward": self.forward,
            "backward": self.backward,
            "waiting": self.exposed,
            "update": self.update,
        }

    @property
    def fits(self) -> bool:
        """Whether a rank's bytes are within the chip's memory."""
        return sum(self.memory.values()) <= self.run.chip.memory


@checked
def step(run: DataParallelRun) -> DataParallelStep:
    """Predict one step."""
    speed = run.utilisation * run.chip.peak_flops
    work = flops.training_step(run.spec, batch=run.batch_per_rank, sequence=run.tokens_per_sequence)
    backward = sum(work["backward"].values()) / speed
    return DataParallelStep(
        run=run,
        forward=sum(work["forward"].values()) / speed,
        backward=backward,
        update=run.recipe.update_traffic * run.num_parameters / run.chip.memory_bandwidth,
        messages=tuple(messages(run, backward / run.num_microbatches)),
        memory=memory.per_rank(training(run)),
    )


@checked
def messages(run: DataParallelRun, backward: float) -> list[overlap.Message]:
    """List the all-reduces of one step; none for one rank.

    backward: seconds of the last backward.
    """
    if run.ranks == 1:
        return []
    link = replace(run.link, bandwidth=run.link_utilisation * run.link.bandwidth)

    def seconds(nbytes: float) -> float:
        return collectives.all_reduce_seconds(nbytes, run.ranks, link)

    parts = overlap.backward_parts(
        run.spec, batch=run.batch_per_rank, sequence=run.tokens_per_sequence
    )
    buckets = overlap.cut(
        parts, bucket_bytes=run.bucket_bytes, bytes_per_parameter=run.recipe.gradients
    )
    return overlap.send(buckets, seconds, backward=backward, overlap=run.overlap)


@checked
def training(run: DataParallelRun, *, zero: int = 0) -> Training:
    """Describe the run for the counts of memory.

    zero: the ZeRO stage, 0 for plain data parallelism.
    """
    return Training(
        spec=run.spec,
        layout=Layout(dp=run.ranks, zero=zero),
        recipe=run.recipe,
        microbatch=run.batch_per_rank // run.num_microbatches,
        num_microbatches=run.num_microbatches,
        sequence=run.tokens_per_sequence,
        attention=run.attention,
        dropout=run.spec.style == "gpt2",
    )


@checked
def events(step: DataParallelStep, rank: int = 0) -> list[Event]:
    """List the step's events as a rank would record them, in seconds from the first forward's
    start.
    """
    run = step.run
    within("rank", rank, run.ranks)
    timeline = []
    clock = 0.0
    for _ in range(run.num_microbatches):
        for op, seconds in (("forward", step.forward), ("backward", step.backward)):
            end = clock + seconds / run.num_microbatches
            timeline.append(Event(rank, "compute", op, (rank,), 0, clock, end))
            clock = end
    start = timeline[-1].start
    group = tuple(range(run.ranks))
    for message in step.messages:
        sent = (round(message.nbytes), start + message.start, start + message.end)
        timeline.append(Event(rank, "communicate", "all_reduce", group, *sent))
    clock += step.exposed
    return [*timeline, Event(rank, "compute", "update", (rank,), 0, clock, clock + step.update)]
