"""The pipeline's part of a step: how long stages work, and what their messages add.

Narayanan et al. 2021, section 2.2 (https://arxiv.org/abs/2104.04473), with unequal stages: all wait for the slowest.
"""

from functools import cache
from typing import NamedTuple

from shardlab.layout import stages

from ..facts.hardware import Link
from ..training import Training
from .engines import Engine
from .exposed import DataWait
from .run import Micro


class Stages(NamedTuple):
    """How many layers the stages of a pipeline have."""

    layers: int  # of the model
    num_stages: int
    of_first: int
    of_last: int
    most: int  # of those between


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
    micro: Micro, wait: DataWait, cut: Stages, m: int, chunks: int, naive: bool
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
