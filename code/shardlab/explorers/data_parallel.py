"""The explorer of data parallelism: one step on a machine of your choice, and its memory."""

from dataclasses import replace
from functools import cache
from typing import Any

from shardlab.costs import memory, step, units
from shardlab.costs.data_parallel import machines, overlap, scaling
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.costs.program import Program
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run, Step
from shardlab.costs.training import Training
from shardlab.figures import data_parallel as figures
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

SEQUENCE = 1024  # tokens of one sample, for every model
BUCKETS = 24  # at most, so that a timeline can be read; fewer where buckets of 25 MiB suffice
HARDLY, HALF = 0.05, 0.5  # shares of a step spent waiting: what decides how long it takes


def explorer() -> Explorer:
    """Choose model, ranks, batch, network and overlap: see a step's timeline and its memory."""
    return Explorer(
        step_view,
        {
            "model": ["GPT-2 small", "GPT-2 XL", "Llama 3.2 1B", "Llama 3 8B"],
            "ranks": [1, 2, 4, 8, 16, 32, 64],
            "batch": [1, 4, 16, 64],
            "network": list(machines.NETWORKS),
            "overlapping": [True, False],
        },
        title="One data-parallel step on H100 GPUs",
        most={"xaxis2": 160},  # twice what one GPU has
        labels={
            "ranks": "Ranks (GPUs, 8 in a server)",
            "batch": f"Batch per rank ({SEQUENCE:,} tokens each)",
            "network": "Network (PCIe: a slower H100)",
            "overlapping": "Overlap with backward",
        },
        units={"batch": "sequences"},
        default={"model": "GPT-2 XL", "ranks": 16, "batch": 4, "network": "PCIe, 100 GbE"},
    )


def step_view(*, overlapping: bool, **choices: Any) -> View:
    """Show one state."""
    run = run_at(**choices)
    run = run if overlapping else scaling.without_overlap(run)
    taken = step.step(run)
    held = memory.per_rank(run.training)
    alt = "The step as a timeline, and the memory it needs beside the chip's capacity."
    capacity = run.cluster.node.chip.memory
    step_time = units.text(taken.seconds, "s")
    figure = figures.timeline_and_memory(
        overlap.events(run), held, capacity, step=step_time, alt=alt
    )
    return View(figure, _sentence(taken), _table(taken))


@cache
def run_at(*, model: str, ranks: int, batch: int, network: str) -> Run:
    """Return the run of one state, with overlap."""
    spec = models.published(model).spec
    training = Training(
        spec=spec,
        layout=Layout(dp=ranks),
        microbatch=batch,
        sequence=SEQUENCE,
        program=in_few_buckets(spec),
    )
    return Run(training=training, cluster=machines.cluster(network, ranks))


def in_few_buckets(spec: TransformerSpec) -> Program:
    """Return the book's program with at most BUCKETS buckets for the gradients of a model."""
    gradients = 2 * models.num_parameters(spec)
    return replace(BOOK, bucket_bytes=max(BOOK.bucket_bytes or 0.0, gradients / BUCKETS))


def _sentence(taken: Step) -> str:
    verdict = remedies.verdict(taken.run.training, taken.run.cluster.node.chip.memory)
    if taken.fits:
        return f"{_bottleneck(taken)} What a rank must hold {verdict}."
    verdict = verdict.replace("does not fit", "<b>does not fit</b>")
    return f"What a rank must hold {verdict}. If it did fit: {_bottleneck(taken)}"


def _bottleneck(taken: Step) -> str:
    """Say what a step waits for."""
    run = taken.run
    whole = units.text(taken.seconds, "s")
    waiting = units.text(taken.waiting, "s")
    share = taken.waiting / taken.seconds
    if run.training.layout.dp == 1:
        return f"A single rank does not communicate: a step takes {whole}."
    busy = overlap.busy_seconds(run)
    if share < HARDLY:
        start = (
            f"<b>Computing decides</b>: the network is busy for {units.text(busy, 's')} of {whole}"
        )
        return f"{start}, but every rank waits only {waiting} ({units.percent(share)})."
    verb = "decides" if share > HALF else "slows it down"
    start = f"<b>The network {verb}</b>: of {whole}, every rank waits {waiting}"
    start += f" ({units.percent(share)})"
    if not run.training.program.data_overlap:
        hidden = step.step(run.by(in_few_buckets(run.training.spec)))
        return f"{start}. With overlap it would wait {units.text(hidden.waiting, 's')}."
    ratio = busy / overlap.backward_seconds(run)
    if ratio < 1:
        return f"{start}. Nothing is left to hide the gradients that backward computes last."
    return f"{start}. Backward cannot hide all-reduces that take {ratio:.3g} times as long."


def _table(taken: Step) -> list[list[str]]:
    held = memory.per_rank(taken.run.training)
    update = taken.parts["update"]
    rows = [
        ["chip", taken.run.cluster.node.chip.name],
        ["forward and backward", units.text(taken.computing - update, "s")],
        ["waiting", units.text(taken.waiting, "s")],
        ["update", units.text(update, "s")],
        ["step", units.text(taken.seconds, "s")],
        ["network busy", units.text(overlap.busy_seconds(taken.run), "s")],
        ["share of computing", f"{100 * taken.computing / taken.seconds:.1f} %"],
        ["tokens per second", units.text(taken.tokens_per_second, "")],
        *([part, units.text(nbytes, "B")] for part, nbytes in held.items()),
    ]
    return [["one step", "value"], *rows, ["memory", units.text(taken.memory, "B")]]
