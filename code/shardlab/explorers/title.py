"""The explorer of the title page: how much of their time many GPUs wait, and what fits."""

from functools import cache

from shardlab.costs import memory, step, units
from shardlab.costs.data_parallel import machines, scaling
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.costs.step import Run, Step
from shardlab.costs.training import Training
from shardlab.figures import title as figures
from shardlab.sharding.layout import Layout

from .data_parallel import in_few_buckets
from .explorer import Explorer
from .view import View

# Half a million tokens in one step, as the smaller models of Brown et al. 2020 (Table 2.1) were
# trained. A GPU computes one sequence at a time and adds up the gradients.
GLOBAL_BATCH = 512  # sequences
SEQUENCE = 1024  # tokens
GPUS = tuple(2**n for n in range(10))


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
    chosen = steps[GPUS.index(gpus)]
    figure = figures.time_and_memory(
        GPUS,
        [each.computing / each.seconds for each in steps],
        gpus,
        memory.per_rank(chosen.run.training),
        chosen.run.cluster.node.chip.memory,
        alt=(
            "Share of a step spent computing and waiting, by number of GPUs, "
            "and the memory of each GPU."
        ),
    )
    return View(figure, _sentence(chosen, steps[0]), _table(steps))


@cache
def _steps(model: str, network: str) -> list[Step]:
    spec = models.published(model).spec
    steps = []
    for count in GPUS:
        training = Training(
            spec=spec,
            layout=Layout(dp=count),
            num_microbatches=GLOBAL_BATCH // count,
            sequence=SEQUENCE,
            program=in_few_buckets(spec),
        )
        run = Run(training=training, cluster=machines.cluster(network, count))
        steps.append(step.step(run))
    return steps


def _sentence(chosen: Step, alone: Step) -> str:
    verdict = remedies.verdict(chosen.run.training, chosen.run.cluster.node.chip.memory)
    time = _time(chosen, alone)
    if chosen.fits:
        return f"{time} What a GPU must hold {verdict}."
    verdict = verdict.replace("does not fit", "<b>does not fit</b>")
    return f"What a GPU must hold {verdict}. If it did fit: {time}"


def _time(chosen: Step, alone: Step) -> str:
    one = units.text(alone.seconds, "s")
    gpus = chosen.run.training.layout.dp
    if gpus == 1:
        return f"One GPU computes a step in <b>{one}</b>."
    gain = scaling.speedups([alone, chosen])[1]
    waiting = units.percent(chosen.waiting / chosen.seconds)
    return (
        f"{gpus} GPUs take <b>{units.text(chosen.seconds, 's')}</b> for a step "
        f"that takes one GPU {one}. That is {gain:.3g} times as fast; "
        f"they wait {waiting} of the time."
    )


def _table(steps: list[Step]) -> list[list[str]]:
    rows = [
        [
            str(each.run.training.layout.dp),
            units.text(each.seconds, "s"),
            f"{100 * each.waiting / each.seconds:.1f} %",
        ]
        for each in steps
    ]
    return [["GPUs", "one step", "waiting"], *rows]
