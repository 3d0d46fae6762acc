"""Overlap: a bucket of gradients travels while backward computes the next one.

Li et al. 2020, "PyTorch Distributed" (https://arxiv.org/abs/2006.15704), section 3.2. Gradients lie
in one flat buffer in the order in which backward finishes them, cut into buckets of equal size:

    backward   | head | layer 3 | layer 2 | layer 1 | embedding |
    network          | bucket 0 | bucket 1 |   bucket 2   | bucket 3 |
                                                          <-exposed->

NCCL's all-reduces run on the GPU too and take some of its multiprocessors and memory bandwidth from
backward. That is left out; on a real GPU the overlapped part of backward is slightly slower.
"""

from dataclasses import dataclass, replace

from shardlab.files.arguments import Count, checked, within
from shardlab.trace import Event

from .. import step
from ..step import Run, axes, layer_time
from ..step.replicas import data_messages


@dataclass(frozen=True, kw_only=True)
@checked
class ModelPart:
    """A piece of the model, in the order of backward."""

    parameters: int
    seconds: float  # of its backward
    at_once: bool = False  # its gradients exist at the end of its backward; else evenly during it


@dataclass(frozen=True, kw_only=True)
@checked
class BucketMessage:
    """One bucket on its way. Seconds count from the start of backward."""

    nbytes: float
    ready: float  # all its gradients exist
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.ready <= self.start <= self.end:
            raise ValueError(
                f"a message is ready, starts and ends in this order, not at {self.ready}, "
                f"{self.start} and {self.end} s"
            )


@checked
def backward_parts(run: Run) -> list[ModelPart]:
    """List head and last norm, the layers from last to first, the embeddings.

    The gradient of a tied head is complete only when the embedding has added its share: at the very
    end.
    """
    links = axes.links(run.cluster, run.training.layout)
    beside = step.microbatch(run, links).beside(links)
    held = step.holdings(run.training)
    chip = run.cluster.node.chip
    _, seconds = layer_time.head_seconds(run.training, chip)
    head = ModelPart(parameters=held.rest - held.first, seconds=seconds, at_once=True)
    layer = ModelPart(parameters=held.layer, seconds=beside.backward)
    return [head, *[layer] * held.layers, ModelPart(parameters=held.first, seconds=0.0)]


@checked
def fill_buckets(parts: list[ModelPart], buckets: Count) -> list[float]:
    """Cut gradients into equal buckets; return the seconds after which each exists.

    Buckets are cut exactly; torch's DDP keeps parameters whole. Errors: ValueError for parts
    without parameters, or without seconds.
    """
    if not all(sum(getattr(part, name) for part in parts) for name in ("parameters", "seconds")):
        raise ValueError(f"parts={parts} must have parameters, and seconds in backward")
    size = sum(part.parameters for part in parts) / buckets
    ready = []
    number = 0
    before = 0.0  # parameters of the parts before
    clock = 0.0
    for bucket in range(1, buckets + 1):
        while number < len(parts) - 1 and before + parts[number].parameters < bucket * size:
            before += parts[number].parameters
            clock += parts[number].seconds
            number += 1
        part = parts[number]
        inside = 1.0
        if part.parameters and not part.at_once:
            inside = min(1.0, (bucket * size - before) / part.parameters)
        ready.append(clock + inside * part.seconds)
    return ready


@checked
def send(ready: list[float], nbytes: float, seconds: float) -> list[BucketMessage]:
    """All-reduce one bucket after the other, each as soon as it is ready and the network is free.

    ready: seconds after which each bucket exists. nbytes, seconds: of the all-reduce of each.
    """
    messages: list[BucketMessage] = []
    free = 0.0
    for exists in ready:
        start = max(exists, free)
        free = start + seconds
        messages.append(BucketMessage(nbytes=nbytes, ready=exists, start=start, end=free))
    return messages


@checked
def messages(run: Run) -> list[BucketMessage]:
    """List the all-reduces of one step; none for one rank.

    They take the seconds that `step.step` counts for an average of whole gradients, whatever the
    stage of ZeRO; with ZeRO-0 a step waits for what is in flight after backward. A program that
    does not overlap them sends all when backward is over.
    """
    training = run.training
    whole = replace(training.layout, zero=0)
    if whole.replicas == 1:
        return []
    link = axes.links(run.cluster, whole)["replicas"]
    held = step.holdings(training)
    ready = [backward_seconds(run)] * held.buckets
    if "average" in training.program.data_overlap:
        ready = fill_buckets(backward_parts(run), held.buckets)
    nbytes = training.recipe.gradients * held.parameters / held.buckets
    sent = data_messages(whole, training.recipe, training.program, link, held)
    return send(ready, nbytes, sent.average / held.buckets)


@checked
def backward_seconds(run: Run) -> float:
    """Return the seconds of one backward."""
    return sum(part.seconds for part in backward_parts(run))


@checked
def busy_seconds(run: Run) -> float:
    """Return the seconds of a step for which the network carries gradients."""
    return sum(message.end - message.start for message in messages(run))


@checked
def events(run: Run, rank: int = 0) -> list[Event]:
    """List a step's events as a rank would record them, from the first forward's start."""
    training = run.training
    within("rank", rank, training.layout.ranks)
    taken = step.step(run)
    sent = messages(run)
    backward = backward_seconds(run)
    m = training.num_microbatches
    forward = (taken.computing - taken.parts["update"]) / m - backward
    timeline = []
    clock = 0.0
    for op, seconds in m * (("forward", forward), ("backward", backward)):
        timeline.append(Event(rank, "compute", op, (rank,), 0, clock, clock + seconds))
        clock += seconds
    start = clock - backward
    group = tuple(range(training.layout.dp))
    for each in sent:
        span = (round(each.nbytes), start + each.start, start + each.end)
        timeline.append(Event(rank, "communicate", "all_reduce", group, *span))
    end = taken.seconds
    update = taken.parts["update"]
    return [*timeline, Event(rank, "compute", "update", (rank,), 0, end - update, end)]
