"""The explorer of data parallelism: one step on a machine of your choice, as a timeline and as memory."""

from dataclasses import replace

from shardlab.costs import data_parallel, units
from shardlab.costs.data_parallel import DataParallelRun, DataParallelStep, machines
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.figures import data_parallel as figures

from .explorer import Explorer
from .view import View

SEQUENCE = 1024  # tokens of one sample, for every model
BUCKETS = 24  # at most so many bars in the picture; buckets of 25 MiB where fewer do
NEARLY_ALL, HALF = 0.95, 0.5  # of a step spent computing: who decides how long it takes


def explorer() -> Explorer:
    """The chapter's: model, ranks, batch per rank, network, overlap -> the step's timeline and the memory it needs."""
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
            "network": "Network (NVLink: H100 SXM; PCIe: H100 PCIe, a slower chip)",
            "overlap": "Overlap with backward",
        },
        units={"batch_per_rank": "sequences"},
        default={"model": "GPT-2 XL", "ranks": 16, "batch_per_rank": 4, "network": "PCIe, 100 GbE"},
    )


def step_view(*, model: str, ranks: int, batch_per_rank: int, network: str, overlap: bool) -> View:
    """One state of the chapter's explorer."""
    step = _step(model, ranks, batch_per_rank, network, overlap)
    sentence = _sentence(step)
    events = data_parallel.events(step)
    alt = "The step as a timeline, and the memory it needs beside the chip's capacity."
    figure = figures.timeline_and_memory(events, step.memory, step.run.chip.memory, alt=alt)
    return View(figure, sentence, _table(step))


def _step(model: str, ranks: int, batch_per_rank: int, network: str, overlap: bool) -> DataParallelStep:
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
    return f"It {verdict.replace('does not fit', '<b>does not fit</b>')}. If it did: {_bottleneck(step)}"


def _bottleneck(step: DataParallelStep) -> str:
    """What a step waits for, in words."""
    whole, waiting = units.text(step.seconds, "s"), units.text(step.exposed, "s")
    share, busy = units.percent(step.exposed / step.seconds), units.text(step.communication, "s")
    if step.run.ranks == 1:
        return f"One rank has nobody to wait for: a step takes {whole}."
    if step.efficiency > NEARLY_ALL:
        start = f"<b>Computing decides</b>: the network is busy for {busy} of {whole}"
        return f"{start}, but every rank waits only {waiting} ({share})."
    verb = "decides" if step.efficiency < HALF else "slows it down"
    start = f"<b>The network {verb}</b>: of {whole}, every rank waits {waiting} ({share})"
    if not step.run.overlap:
        hidden = data_parallel.step(replace(step.run, overlap=True))
        return f"{start}; overlap would leave {units.text(hidden.exposed, 's')}."
    ratio = step.communication / step.backward
    if ratio < 1:
        return f"{start}; the gradients that backward computes last have nothing to hide behind."
    return f"{start}; the all-reduces take {ratio:.3g} times as long as backward, which cannot hide them."


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
