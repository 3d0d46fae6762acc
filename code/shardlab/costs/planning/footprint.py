"""The memory of many layouts: each term of `memory` computed once for all layouts that share it.

A rank's bytes are resident (states, and what ZeRO gathers) or depend on the microbatches in flight;
a test compares their sum with `memory.total`.
"""

from dataclasses import fields
from functools import cache

from shardlab.arguments import Count, checked, unchecked, within
from shardlab.schedules import classic

from .. import memory
from ..memory import MicrobatchBytes, MicrobatchesInFlight, overhead
from ..training import SCHEDULES, Training

kept_bytes = unchecked(memory.kept_bytes)  # called for each plan, see `planner`


@checked
def of_a_microbatch(training: Training) -> MicrobatchBytes:
    """Count what one microbatch needs on a rank, with its share of the margin."""
    one = memory.microbatch_bytes(training)
    factor = 1 + training.program.margin
    grown = {field.name: factor * getattr(one, field.name) for field in fields(one)}
    return MicrobatchBytes(**grown)


@checked
def resident_bytes(training: Training, stage: int) -> float:
    """Count the bytes on a rank of the stage that do not depend on the microbatch.

    They are the states, the buckets, what ZeRO holds of whole layers at a time, and the overhead.
    """
    states = sum(memory.states(training, stage).values())
    tensors = states + sum(memory.messages(training, stage).values())
    return tensors + sum(overhead.overhead(training, tensors).values())


@checked
def microbatch_bytes(
    one: MicrobatchBytes, flying: MicrobatchesInFlight, layers: float, *, first: bool, last: bool
) -> float:
    """Count the bytes of a stage's rank at its peak that are not resident.

    layers: of each chunk. first, last: whether the stage is the first, or the last.
    """
    nbytes = one.gathered + kept_bytes(one, flying, layers, first=first, last=last)
    if not last:
        return nbytes + one.backward
    return nbytes + flying.of_last * one.logits + max(one.loss, one.backward)


@checked
@cache
def in_flight(
    schedule: str, stage: int, *, pp: Count, num_microbatches: Count, chunks: Count
) -> MicrobatchesInFlight:
    """Count what `training.in_flight` does without playing the schedule.

    At its peak a stage has run all forwards before its first backward, and no backward.
    """
    within("stage", stage, pp)
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if schedule != "interleaved":
        warm_up = min(num_microbatches, pp - stage)
        most = {"1F1B": warm_up, "GPipe": num_microbatches, "naive": 1}[schedule]
        return MicrobatchesInFlight(most, most, most)
    largest = next(classic.group_sizes(num_microbatches, pp))
    warm_up = 2 * (pp - 1 - stage) + (chunks - 1) * largest + 1
    most = min(num_microbatches * chunks, warm_up)
    left = most
    of_first = 0
    of_last = 0
    for size in classic.group_sizes(num_microbatches, pp):  # each goes through all chunks
        of_first += min(left, size)
        of_last += min(max(0, left - (chunks - 1) * size), size)
        left -= chunks * size
        if left <= 0:
            break
    return MicrobatchesInFlight(most, of_first, of_last)
