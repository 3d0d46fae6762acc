"""The explorer of the title page: how much of their time many GPUs wait, and what fits."""

from functools import cache

from shardlab.costs import data_parallel, units
from shardlab.costs.data_parallel import DataParallelRun, DataParallelStep, machines, scaling
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.figures import title as figures

from .explorer import Explorer
from .view import View

# Half a million tokens in one step, as the smaller models of Brown et al. 2020 (Table 2.1) were
# trained. A GPU computes one sequence at a time and adds up the gradients.
GLOBAL_BATCH = 512  # sequences
SEQUENCE = 1024  # tokens
GPUS = tuple(2**n for n in range(10))
BUCKETS = 24  # or fewer, of 25 MiB: on many GPUs the latency of small ones would add up


def explorer() -> Explorer:
    """Choose a model, GPUs and a network: see the share spent waiting, and the memory per GPU."""
    return Explorer(
        view,
        {
            "model": ["GPT-2 small", "GPT-2 XL", "Llama 3 8B", "Llama 3 70B", "GPT-3 175B"],
            "gpus": list(GPUS),
            "network": list(machines.NETWORKS),
        },
        title=f"One model, many GPUs: training on H100s, {GLOBAL_BATCH * SEQUENCE:,} tokens a step",
        labels={
            "gpus": "GPUs (8 in a server)",
            "network": "Network (PCIe: a slower H100)",
        },
        default={"model": "GPT-2 XL", "gpus": 64, "network": "PCIe, 100 GbE"},
    )


def view(*, model: str, gpus: int, network: str) -> View:
    """Show one state."""
    steps = _steps(model, network)
    step = steps[GPUS.index(gpus)]
    figure = figures.time_and_memory(
        GPUS,
        [one.efficiency for one in steps],
        gpus,
        step.memory,
        step.run.chip.memory,
        alt=(
            "Share of a step spent computing and waiting, by number of GPUs, "
            "and the memory of each GPU."
        ),
    )
    return View(figure, _sentence(step, steps[0]), _table(steps))


@cache
def _steps(model: str, network: str) -> list[DataParallelStep]:
    spec = models.published(model).spec
    gradients = 2 * models.num_parameters(spec)
    return [
        data_parallel.step(
            DataParallelRun(
                spec=spec,
                chip=machines.chip(network),
                link=machines.network(network, count),
                ranks=count,
                batch_per_rank=GLOBAL_BATCH // count,
                num_microbatches=GLOBAL_BATCH // count,
                sequence=SEQUENCE,
                bucket_bytes=max(25 * units.MiB, gradients / BUCKETS),
            )
        )
        for count in GPUS
    ]


def _sentence(step: DataParallelStep, alone: DataParallelStep) -> str:
    verdict = remedies.verdict(data_parallel.training(step.run), step.run.chip.memory)
    time = _time(step, alone)
    if step.fits:
        return f"{time} What a GPU must hold {verdict}."
    verdict = verdict.replace("does not fit", "<b>does not fit</b>")
    return f"What a GPU must hold {verdict}. If it did fit: {time}"


def _time(step: DataParallelStep, alone: DataParallelStep) -> str:
    one = units.text(alone.seconds, "s")
    if step.run.ranks == 1:
        return f"One GPU computes a step in <b>{one}</b>."
    gain = scaling.speedups([alone, step])[1]
    waiting = units.percent(step.exposed / step.seconds)
    return (
        f"{step.run.ranks} GPUs take <b>{units.text(step.seconds, 's')}</b> for a step "
        f"that takes one GPU {one}. That is {gain:.3g} times as fast; "
        f"they wait {waiting} of the time."
    )


def _table(steps: list[DataParallelStep]) -> list[list[str]]:
    rows = [
        [
            str(one.run.ranks),
            units.text(one.seconds, "s"),
            f"{100 * one.exposed / one.seconds:.1f} %",
        ]
        for one in steps
    ]
    return [["GPUs", "one step", "waiting"], *rows]
