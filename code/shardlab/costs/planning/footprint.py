"""The memory of many layouts: the sums of `memory` taken apart, each part computed once for all layouts that share it.

A rank's bytes are states, messages of ZeRO, and what microbatches in flight leave; a test holds their sum to `memory`.
"""

from functools import cache
from typing import NamedTuple

from shardlab.layout import stages
from shardlab.schedules import classic

from .. import memory
from ..memory import activations
from ..training import Training


class Kept(NamedTuple):
    """Bytes that one microbatch leaves on a rank. Of the layout they depend on tp, cp and sequence parallelism only."""

    layer: float
    embedding: float
    head: float
    loss: float  # for a moment, on the last stage
    recomputed: float  # for a moment, of the layer in work
    gathered: float  # sequence parallelism's


class Flying(NamedTuple):
    """Microbatches in flight at a stage's peak, counted in chunks."""

    all: int
    of_first: int  # of the stage's first chunk
    of_last: int


def kept(training: Training) -> Kept:
    """What a microbatch leaves, part by part."""
    held = memory.buffers(training)
    return Kept(
        layer=sum(activations.layer(training).values()),
        embedding=sum(activations.embedding(training).values()),
        head=sum(activations.head(training).values()),
        loss=2 * activations.logits(training),
        recomputed=memory.recomputed(training),
        gathered=held["sequence parallelism"],
    )


def standing(training: Training, stage: int) -> float:
    """States of a rank of the stage, and what ZeRO has of layers at a time. They do not depend on the microbatch."""
    messages = memory.buffers(training, stage)
    passing = {"loss", "recomputation", "sequence parallelism"}
    states = sum(memory.states(training, stage).values())
    return states + sum(nbytes for part, nbytes in messages.items() if part not in passing)


@cache
def flying(schedule: str, stage: int, pp: int, m: int, chunks: int) -> Flying:
    """What `training.in_flight` counts, without playing the schedule: the forwards before the first backward."""
    if schedule != "interleaved":
        most = {"1F1B": min(m, pp - stage), "GPipe": m, "naive": 1}[schedule]
        return Flying(most, most, most)
    groups = classic.groups_of(m, pp)
    left = most = min(m * chunks, 2 * (pp - 1 - stage) + (chunks - 1) * len(groups[0]) + 1)
    of_first = of_last = 0
    for group in groups:  # each goes through all chunks
        of_first += min(left, len(group))
        of_last += min(max(0, left - (chunks - 1) * len(group)), len(group))
        left -= chunks * len(group)
        if left <= 0:
            break
    return Flying(most, of_first, of_last)


def first_stage(each: Kept, fly: Flying, layers: float, *, alone: bool) -> float:
    """Count the bytes on a rank of the first stage that `standing` leaves out, with `layers` in each chunk.

    alone: it is the last stage, too.
    """
    held = each.gathered + fly.all * layers * each.layer + fly.of_first * each.embedding
    if alone:
        return held + fly.of_last * each.head + max(each.loss, each.recomputed)
    return held + each.recomputed


def last_stage(each: Kept, fly: Flying, layers: float) -> float:
    """Bytes beside what `standing` counts on a rank of the last of several stages."""
    held = each.gathered + fly.all * layers * each.layer + fly.of_last * each.head
    return held + max(each.loss, each.recomputed)


def layers_of_ends(num_layers: int, pp: int) -> tuple[int, int]:
    """Layers of the first and of the last stage, as `memory` counts them."""
    cut = stages(num_layers, pp)
    return len(cut[0]), len(cut[-1])
