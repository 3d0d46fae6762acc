"""The explorer of ZeRO: at each stage what a rank holds, what it sends, and how long it waits."""

from dataclasses import replace
from functools import cache

from shardlab.costs import memory, units, zero
from shardlab.costs.data_parallel import machines
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.costs.zero import step as zero_step
from shardlab.costs.zero.step import ZeroRun, ZeroStep
from shardlab.figures import zero as figures
from shardlab.layout import ZERO_STAGES

from .explorer import Explorer
from .view import View

SEQUENCE = 2048  # tokens of one sample; GPT-2 reads half as many
NETWORKS = ["NVLink, 8 InfiniBand cards", "PCIe, 1 InfiniBand card", "PCIe, 100 GbE"]
LITTLE, HALF = 0.05, 0.5  # shares of a step that a rank waits: how it is called
MORE = 1.01  # times as many bytes: what is less is padding


def explorer() -> Explorer:
    """Choose a model, a stage, ranks and a network: see memory and time of a step at each stage."""
    return Explorer(
        stage_view,
        {
            "model": ["GPT-2 XL", "Llama 3 8B", "Llama 3 70B", "GPT-3 175B"],
            "stage": list(ZERO_STAGES),
            "ranks": [8, 64, 512],
            "batch": [1, 4],
            "network": NETWORKS,
        },
        title="ZeRO on H100 GPUs: memory against messages",
        labels={
            "stage": "Stage (0: plain data parallelism)",
            "ranks": "Ranks (GPUs, 8 in a server)",
            "batch": f"Sequences of {SEQUENCE:,} tokens (GPT-2: half)",
            "network": "Network (PCIe: a slower H100)",
        },
        units={"batch": "sequences"},
        default={
            "model": "Llama 3 8B",
            "stage": 3,
            "ranks": 64,
            "batch": 1,
            "network": NETWORKS[0],
        },
    )


def stage_view(*, model: str, stage: int, ranks: int, batch: int, network: str) -> View:
    """Show one state."""
    steps = {every: step_at(model, every, ranks, batch, network) for every in ZERO_STAGES}
    held = {every: memory.per_rank(step.run.training) for every, step in steps.items()}
    capacity = steps[stage].run.chip.memory
    figure = figures.memory_and_time(
        {_name(every): parts for every, parts in held.items()},
        {_name(every): step.parts for every, step in steps.items()},
        _name(stage),
        capacity,
        alt=f"Memory of a rank and time of a step of {model} on {ranks} GPUs, by stage of ZeRO.",
    )
    fits = {every: sum(parts.values()) <= capacity for every, parts in held.items()}
    sentence = f"{_name(stage).capitalize()} {_fitting(steps[stage], fits)} {_time(steps, stage)}"
    return View(figure, sentence, _table(held, steps))


@cache
def step_at(model: str, stage: int, ranks: int, batch: int, network: str) -> ZeroStep:
    """Predict the step of one state."""
    return zero_step.step(
        ZeroRun(
            spec=models.published(model).spec,
            chip=machines.chip(network),
            link=machines.network(network, ranks),
            ranks=ranks,
            batch_per_rank=batch,
            sequence=SEQUENCE if model != "GPT-2 XL" else SEQUENCE // 2,
            zero=stage,
        )
    )


def _name(stage: int) -> str:
    return f"stage {stage}"


def _fitting(step: ZeroStep, fits: dict[int, bool]) -> str:
    run = step.run
    words = remedies.verdict(run.training, run.chip.memory)
    words = words.replace("does not fit", "<b>does not fit</b>").replace("fits:", "<b>fits</b>:")
    enough = next((stage for stage, works in fits.items() if works), None)
    if enough is not None and enough < run.zero:
        words += f", and stage {enough} would be enough"
    return f"{words}."


def _time(steps: dict[int, ZeroStep], stage: int) -> str:
    step = steps[stage]
    sent = sum(zero.sent_bytes(steps[stage].run.training).values())
    ratio = zero.ratio(step.run.training)
    share = step.waiting / step.seconds
    text = f"Each rank sends {units.text(sent, 'B')}"
    if stage > 0:
        text += (
            f", {'as much as' if ratio < MORE else f'{ratio:.3g} times what'} data parallelism does"
        )
    how = "hardly waits" if share < LITTLE else "<b>mostly waits</b>" if share > HALF else "waits"
    times = f"{units.text(step.waiting, 's')} of {units.text(step.seconds, 's')}"
    waits = f"and {how}: {times} ({units.percent(share)})"
    return f"{text}, {waits}.{_advice(step)}"


def _advice(step: ZeroStep) -> str:
    """Say how much larger the batch must be until a rank waits less than half of the time."""
    run = step.run
    if step.waiting < HALF * step.seconds:
        return ""
    times = 2
    while times <= 2**10:
        larger = zero_step.step(replace(run, batch_per_rank=times * run.batch_per_rank))
        if larger.waiting < HALF * larger.seconds:
            return f" With {times} times the batch it would wait less than half of the time."
        times *= 2
    return " No larger batch makes it wait less than half of the time."


def _table(held: dict[int, dict[str, float]], steps: dict[int, ZeroStep]) -> list[list[str]]:
    parts = dict.fromkeys(part for each in held.values() for part in each)
    rows = [
        [part, *(units.text(each.get(part, 0.0), "B") for each in held.values())] for part in parts
    ]
    rows.append(["memory", *(units.text(sum(each.values()), "B") for each in held.values())])
    sent = [sum(zero.sent_bytes(step.run.training).values()) for step in steps.values()]
    rows.append(["sent by each rank", *(units.text(nbytes, "B") for nbytes in sent)])
    rows.append(["step", *(units.text(step.seconds, "s") for step in steps.values())])
    rows.append(["waiting", *(units.text(step.waiting, "s") for step in steps.values())])
    rows.append(["efficiency", *(f"{100 * step.efficiency:.1f} %" for step in steps.values())])
    return [["one rank", *map(_name, held)], *rows]
