"""The memory of many layouts: each term of `memory` computed once for all layouts that share it.

A rank's bytes are resident (states, and what ZeRO gathers) or depend on the microbatches in flight;
a test compares their sum with `memory.total`.
"""

from functools import cache

from shardlab.layout import stages
from shardlab.schedules import classic

from .. import memory
from ..memory import InFlight, MicrobatchBytes
from ..training import Training


def resident_bytes(training: Training, stage: int) -> float:
    """Count the bytes on a rank of the stage that do not depend on the microbatch.

    They are the states, the buckets, and what ZeRO holds of whole layers at a time.
    """
    states = sum(memory.states(training, stage).values())
    return states + sum(memory.messages(training, stage).values())


def microbatch_bytes(
    one: MicrobatchBytes, flying: InFlight, layers: float, *, first: bool, last: bool
) -> float:
    """Count the bytes of a stage's rank at its peak that are not resident.

    layers: of each chunk. first, last: whether the stage is the first, or the last.
    """
    nbytes = one.gathered + memory.kept_bytes(one, flying, layers, first=first, last=last)
    if not last:
        return nbytes + one.recomputed
    return nbytes + flying.of_last * one.logits + max(one.loss, one.recomputed)


@cache
def in_flight(
    schedule: str, stage: int, *, pp: int, num_microbatches: int, chunks: int
) -> InFlight:
    """Count what `training.in_flight` does without playing the schedule.

    At its peak a stage has run all forwards before its first backward, and no backward.
    """
    if schedule != "interleaved":
        warm_up = min(num_microbatches, pp - stage)
        most = {"1F1B": warm_up, "GPipe": num_microbatches, "naive": 1}[schedule]
        return InFlight(most, most, most)
    groups = classic.groups_of(num_microbatches, pp)
    warm_up = 2 * (pp - 1 - stage) + (chunks - 1) * len(groups[0]) + 1
    most = min(num_microbatches * chunks, warm_up)
    left = most
    of_first = 0
    of_last = 0
    for group in groups:  # each goes through all chunks
        of_first += min(left, len(group))
        of_last += min(max(0, left - (chunks - 1) * len(group)), len(group))
        left -= chunks * len(group)
        if left <= 0:
            break
    return InFlight(most, of_first, of_last)


def layers_of_ends(num_layers: int, pp: int) -> tuple[int, int]:
    """Count the layers of the first and of the last stage, as `memory` cuts them."""
    cut = stages(num_layers, pp)
    return len(cut[0]), len(cut[-1])
