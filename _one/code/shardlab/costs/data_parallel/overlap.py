"""Overlap: a bucket of gradients travels while backward computes the next one.

Li et al. 2020, "PyTorch Distributed" (https://arxiv.org/abs/2006.15704), section 3.2. Gradients lie
in one flat buffer in the order in which backward finishes them, cut into buckets of equal size:

    backward   | head | layer 3 | layer 2 | layer 1 | embedding |
    network          | bucket 0 | bucket 1 |   bucket 2   | bucket 3 |
                                                          <-exposed->

NCCL's all-reduces run on the GPU too and take some of its multiprocessors and memory bandwidth from
backward. That is left out; on a real GPU the overlapped part of backward is slightly slower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from shardlab.arguments import Count, Positive, checked
from shardlab.spec import TransformerSpec

from ..compute import flops
from ..facts import models

MOST_BUCKETS = 1_000_000  # to compute the times of more takes long


@dataclass(frozen=True, kw_only=True)
@checked
class ModelPart:
    """A piece of the model, in the order of backward."""

    parameters: int
    work: float  # FLOPs of its backward


@dataclass(frozen=True, kw_only=True)
@checked
class Message:
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
def backward_parts(spec: TransformerSpec, *, batch: Count, sequence: Count) -> list[ModelPart]:
    """List head and last norm, the layers from last to first, the embeddings.

    The gradient of a tied head is complete only when the embedding has added its share: at the very
    end.
    """
    counts = models.parameters(spec)
    work = flops.backward(spec, batch=batch, sequence=sequence)
    layer_work = (sum(work.values()) - work["head"]) / spec.num_layers
    layer = ModelPart(parameters=models.layer_parameters(spec), work=layer_work)
    last = counts["head"] + models.norm_parameters(spec)
    head = ModelPart(parameters=last, work=work["head"])
    tables = counts["token embedding"] + counts["position embedding"]
    embeddings = ModelPart(parameters=tables, work=0)
    return [head, *[layer] * spec.num_layers, embeddings]


@checked
def cut(
    parts: list[ModelPart], *, bucket_bytes: Positive, bytes_per_parameter: Positive
) -> list[tuple[float, float]]:
    """Cut gradients into buckets, as (bytes, share of backward after which they all exist).

    Inside a part, gradients appear evenly. Buckets are cut exactly; torch's DDP keeps parameters
    whole. Errors: ValueError where there are more than MOST_BUCKETS.
    """
    if not all(sum(getattr(part, name) for part in parts) for name in ("parameters", "work")):
        raise ValueError(f"parts={parts} must have parameters, and work in backward")
    total = sum(part.parameters for part in parts) * bytes_per_parameter
    if total > MOST_BUCKETS * bucket_bytes:
        raise ValueError(
            f"bucket_bytes={bucket_bytes} cuts {total:.3g} bytes into more than {MOST_BUCKETS:,} "
            f"buckets; use at least {total / MOST_BUCKETS:.3g}"
        )
    edges = [min((i + 1) * bucket_bytes, total) for i in range(ceil(total / bucket_bytes))]
    shares = _work_done(parts, [edge / bytes_per_parameter for edge in edges])
    starts = [0.0, *edges[:-1]]
    return [(edge - start, share) for start, edge, share in zip(starts, edges, shares, strict=True)]


@checked
def send(
    buckets: list[tuple[float, float]],
    seconds: Callable[[float], float],
    *,
    backward: float,
    overlap: bool = True,
) -> list[Message]:
    """All-reduce one bucket after the other, each as soon as it is ready and the network is free.

    seconds: bytes -> duration of an all-reduce. backward: its duration in seconds. Without overlap
    all buckets wait for the end of backward.
    """
    messages: list[Message] = []
    free = 0.0
    for nbytes, share in buckets:
        ready = share * backward if overlap else backward
        start = max(ready, free)
        free = start + seconds(nbytes)
        messages.append(Message(nbytes=nbytes, ready=ready, start=start, end=free))
    return messages


def _work_done(parts: list[ModelPart], positions: list[float]) -> list[float]:
    """Return the share of all work done when the gradients up to each rising position exist."""
    total = sum(part.work for part in parts)
    shares = []
    index = 0
    before = 0.0  # parameters of the parts before
    done = 0.0  # their work
    for position in positions:
        while index < len(parts) - 1 and before + parts[index].parameters < position:
            before += parts[index].parameters
            done += parts[index].work
            index += 1
        inside = min(1.0, (position - before) / parts[index].parameters)
        shares.append((done + inside * parts[index].work) / total)
    return shares
