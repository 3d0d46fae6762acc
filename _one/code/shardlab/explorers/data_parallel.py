"""The explorer of data parallelism: one step on a machine of your choice, and its memory."""

from dataclasses import replace

from shardlab.costs import data_parallel, units
from shardlab.costs.data_parallel import DataParallelRun, DataParallelStep, machines
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.figures import data_parallel as figures

from .explorer import Explorer
from .view import View

SEQUENCE = 1024  # tokens of one sample, for every model
BUCKETS = 24  # at most, so that a timeline can be read; fewer where buckets of 25 MiB suffice
NEARLY_ALL, HALF = 0.95, 0.5  # shares of a step spent computing: what decides how long it takes


def explorer() -> Explorer:
    """Choose model, ranks, batch, network and overlap: see a step's timeline and its memory."""
    return Explorer(
        step_view,
        {
            "model": ["GPT-2 small", "GPT-2 XL", "Llama 3.2 1B", "Llama 3 8B"],
            "ranks": [1, 2, 4, 8, 16, 32, 64],
            "batch_per_rank": [1, 4, 16, 64],
            "network": list(machines.NETWORKS),
            "overlap": [True, False],
        },
        title="One data-parallel step on H100 GPUs",
        labels={
            "ranks": "Ranks (GPUs, 8 in a server)",
            "batch_per_rank": f"Batch per rank ({SEQUENCE:,} tokens each)",
            "network": "Network (PCIe: a slower H100)",
            "overlap": "Overlap with backward",
        },
        units={"batch_per_rank": "sequences"},
        default={"model": "GPT-2 XL", "ranks": 16, "batch_per_rank": 4, "network": "PCIe, 100 GbE"},
    )


def step_view(*, model: str, ranks: int, batch_per_rank: int, network: str, overlap: bool) -> View:
    """Show one state."""
    step = step_at(model, ranks, batch_per_rank, network, overlap)
    sentence = _sentence(step)
    events = data_parallel.events(step)
    alt = "The step as a timeline, and the memory it needs beside the chip's capacity."
    figure = figures.timeline_and_memory(events, step.memory, step.run.chip.memory, alt=alt)
    return View(figure, sentence, _table(step))


def step_at(
    model: str, ranks: int, batch_per_rank: int, network: str, overlap: bool
) -> DataParallelStep:
    """Predict the step of one state."""
    spec = models.published(model).spec
    gradients = models.num_parameters(spec) * 2
    return data_parallel.step(
        DataParallelRun(
            spec=spec,
            chip=machines.chip(network),
            link=machines.network(network, ranks),
            ranks=ranks,
            batch_per_rank=batch_per_rank,
            sequence=SEQUENCE,
            bucket_bytes=max(25 * units.MiB, gradients / BUCKETS),
            overlap=overlap,
        )
    )


def _sentence(step: DataParallelStep) -> str:
    verdict = remedies.verdict(data_parallel.training(step.run), step.run.chip.memory)
    if step.fits:
        return f"{_bottleneck(step)} What a rank must hold {verdict}."
    verdict = verdict.replace("does not fit", "<b>does not fit</b>")
    return f"What a rank must hold {verdict}. If it did fit: {_bottleneck(step)}"


def _bottleneck(step: DataParallelStep) -> str:
    """Say what a step waits for."""
    whole = units.text(step.seconds, "s")
    waiting = units.text(step.exposed, "s")
    share = units.percent(step.exposed / step.seconds)
    if step.run.ranks == 1:
        return f"A single rank does not communicate: a step takes {whole}."
    if step.efficiency > NEARLY_ALL:
        busy = units.text(step.communication, "s")
        start = f"<b>Computing decides</b>: the network is busy for {busy} of {whole}"
        return f"{start}, but every rank waits only {waiting} ({share})."
    verb = "decides" if step.efficiency < HALF else "slows it down"
    start = f"<b>The network {verb}</b>: of {whole}, every rank waits {waiting} ({share})"
    if not step.run.overlap:
        hidden = data_parallel.step(replace(step.run, overlap=True))
        return f"{start}. With overlap it would wait {units.text(hidden.exposed, 's')}."
    ratio = step.communication / step.backward
    if ratio < 1:
        return f"{start}. Nothing is left to hide the gradients that backward computes last."
    return f"{start}. Backward cannot hide all-reduces that take {ratio:.3g} times as long."


def _table(step: DataParallelStep) -> list[list[str]]:
    rows = [["chip", step.run.chip.name]]
    rows += [[part, units.text(seconds, "s")] for part, seconds in step.parts.items()]
    rows += [
        ["step", units.text(step.seconds, "s")],
        ["network busy", units.text(step.communication, "s")],
        ["efficiency", f"{100 * step.efficiency:.1f} %"],
        ["tokens per second", units.text(step.tokens_per_second, "")],
    ]
    rows += [[part, units.text(nbytes, "B")] for part, nbytes in step.memory.items()]
    return [["one step", "value"], *rows, ["memory", units.text(sum(step.memory.values()), "B")]]
