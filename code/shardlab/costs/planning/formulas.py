"""The formulas of the chapters in seconds, each beside the term of the step that it stands for."""

from dataclasses import dataclass

from shardlab.files.arguments import checked

from .. import tensor_parallel, zero
from ..compute import kernels
from ..facts import models
from ..memory import CUT_FROM
from ..step import Run, step
from ..step.axes import links

TERMS = {  # chapter -> the parts of a step that its formula stands for; other parts have no formula
    "compute": ("matrices", "attention", "norms and residuals", "embedding and head"),
    "memory": ("recomputation",),
    "tensor_parallel": ("tensor parallel",),
    "pipeline": ("waiting for stages",),
    "data_parallel": ("data parallel", "ZeRO"),
}
NONE = "no formula"


@dataclass(frozen=True, kw_only=True)
@checked
class Explained:
    """A term of a step, and what the formula of a chapter gives for it."""

    by_hand: float | None  # seconds by the formula; None where there is none
    term: float  # seconds of the same parts in `step`
    share: float  # the term, as a part of the whole step: 0 to 1


@checked
def explained(run: Run) -> dict[str, Explained]:
    """Compare the chapters' formulas with a run's step, as chapter -> seconds and share.

    The last row, NONE, holds what no formula explains, so that the shares add up to 1. Errors:
    ValueError for a mixture.
    """
    taken = step(run)
    seconds = by_hand(run)
    terms = {name: sum(taken.parts[part] for part in parts) for name, parts in TERMS.items()}
    terms[NONE] = taken.seconds - sum(terms.values())
    return {
        name: Explained(by_hand=seconds.get(name), term=term, share=term / taken.seconds)
        for name, term in terms.items()
    }


@checked
def by_hand(run: Run) -> dict[str, float]:
    """Return the seconds of the bare formulas, without latency, as chapter -> seconds.

    A token costs 6 FLOPs for each parameter, at the rate that ordinary products reach. Messages of
    tensor parallelism hide behind nothing, those among replicas behind the last backward, and from
    ZeRO-2 on behind all computing. Errors: ValueError for a mixture.
    """
    if run.training.spec.experts:
        raise ValueError("these formulas are those of dense models; choose a run without experts")
    training = run.training
    layout = training.layout
    m = training.num_microbatches
    reached_links = links(run.cluster, layout)
    reached = kernels.ordinary_flops(run.cluster.node.chip, run.training.precision)
    computing = 6 * models.num_parameters(training.spec) * run.tokens / (layout.ranks * reached)
    again = computing / 3 * training.recomputed_share
    layers = m * training.spec.num_layers / layout.pp
    tensor = layers * tensor_parallel.sent_bytes(training) / reached_links["tp"].bandwidth
    busy = computing + again + tensor
    sent = sum(zero.sent_bytes(training).values()) / reached_links["replicas"].bandwidth
    beside = computing + again if layout.zero >= CUT_FROM["gradients"] else computing * 2 / 3 / m
    return {
        "compute": computing,
        "memory": again,
        "tensor_parallel": tensor,
        "pipeline": busy * (layout.pp - 1) / (training.chunks * m),
        "data_parallel": max(0.0, sent - beside),
    }
