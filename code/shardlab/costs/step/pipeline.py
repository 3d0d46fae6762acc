"""The pipeline's part of a step: how long stages work, and how long their messages take.

Narayanan et al. 2021, section 2.2 (https://arxiv.org/abs/2104.04473), extended to unequal stages:
every stage waits for the slowest one.
"""

from dataclasses import dataclass
from functools import cache

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import stages

from ..facts.hardware import LAUNCH, ReachedLink
from ..program import Program
from .replicas import DataWait
from .run import MicrobatchTime


@dataclass(frozen=True, kw_only=True)
@checked
class StageLayers:
    """How many layers the stages of a pipeline have."""

    total: Count  # layers of the model
    num_stages: Count
    first: int  # layers of the first stage
    last: int
    most_between: int  # layers of the largest stage between those two; 0 where there is none

    @property
    def most(self) -> int:
        """Layers of the largest stage."""
        return max(self.first, self.last, self.most_between)


@checked
@cache
def stages_of(num_layers: Count, pp: Count, chunks: Count = 1) -> StageLayers:
    """Summarize how `layout.stages` cuts the model."""
    counts = [len(stage) for stage in stages(num_layers, pp, chunks)]
    return StageLayers(
        total=num_layers,
        num_stages=pp,
        first=counts[0],
        last=counts[-1],
        most_between=max(counts[1:-1], default=0),
    )


@checked
def pipeline_seconds(
    micro: MicrobatchTime,
    wait: DataWait,
    stages: StageLayers,
    *,
    num_microbatches: Count,
    chunks: Count = 1,
    schedule: str = "1F1B",
) -> float:
    """Time the pipeline from its first forward to its last backward, without messages.

    The slowest stage works on every microbatch. Before its first microbatch and after
    its last, the other stages work once, on one of their chunks if they have several.
    With the naive schedule, one stage after the other works on every microbatch. Exact
    for equal stages, for GPipe and for naive; where the first stages are the slowest,
    1F1B takes a little less.
    """
    layer = micro.layer + wait.layer
    first = micro.first + wait.rest
    last = micro.last + wait.rest
    if stages.num_stages == 1:
        whole = stages.total * layer + micro.first + micro.last + wait.rest
        return num_microbatches * whole
    whole = stages.total * layer + first + last
    if schedule == "naive":
        return num_microbatches * whole
    slowest = max(
        stages.first * layer + first,
        stages.last * layer + last,
        stages.most_between * layer,
    )
    return num_microbatches * slowest + (whole - slowest) / chunks


@checked
def send_seconds(nbytes: float, pp: Count, link: ReachedLink) -> float:
    """Time one message of `nbytes` between two stages; 0 where pp is 1."""
    return link.latency + nbytes / link.bandwidth if pp > 1 else 0.0


@checked
def sending_seconds(
    send: float,
    program: Program,
    *,
    pp: Count,
    num_microbatches: Count,
    chunks: Count = 1,
    schedule: str = "1F1B",
    beside: float = 0.0,
) -> float:
    """Time what the messages between stages add to a step, `send` seconds each.

    One message after the other goes once through the pipeline and back. A program that does not
    overlap them also waits for every message that one stage sends and receives. One that does still
    launches two kernels for each, and waits for what takes longer than the forward of a chunk,
    `beside` seconds; and with chunks, nothing is hidden until every chunk of the first stage has
    worked, nor after their last: Megatron-LM's rule, --overlap-p2p-communication-warmup-flush
    aside.
    """
    if pp == 1:
        return 0.0
    hops = 2 * (pp - 1)
    if schedule == "naive":
        return num_microbatches * hops * send
    waited = send
    if program.send_overlap:
        waited = 2 * LAUNCH + max(0.0, send - beside)
        hops += 2 * (pp * (chunks - 1) + (pp - 1) * (chunks > 1))
    return hops * send + 2 * num_microbatches * chunks * waited
