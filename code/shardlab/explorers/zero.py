"""The explorer of ZeRO: at each stage what a rank holds, what it sends, and how long it waits."""

from dataclasses import replace
from functools import cache
from typing import Any

from shardlab.costs import memory, step, units, zero
from shardlab.costs.data_parallel import machines
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.costs.programs import BOOK_ZERO, NEMO_2024, PROGRAMS
from shardlab.costs.step import Run, Step
from shardlab.costs.training import Training
from shardlab.figures import zero as figures
from shardlab.sharding.layout import ZERO_STAGES, Layout

from .explorer import Explorer
from .view import View

SEQUENCE = 2048  # tokens of one sample; GPT-2 reads half as many
NETWORKS = ["NVLink, 8 InfiniBand cards", "PCIe, 1 InfiniBand card"]
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
            "program": [BOOK_ZERO.name, NEMO_2024.name],
        },
        title="ZeRO on H100 GPUs: memory against messages",
        per=["model"],
        most={"xaxis": 160},  # twice what one GPU has
        labels={
            "stage": "Stage (0: plain data parallelism)",
            "ranks": "Ranks (GPUs, 8 in a server)",
            "batch": f"Sequences of {SEQUENCE:,} tokens (GPT-2: half)",
            "network": "Network (PCIe: a slower H100)",
            "program": "Program",
        },
        units={"batch": "sequences"},
        default={
            "model": "Llama 3 8B",
            "stage": 1,
            "ranks": 64,
            "batch": 1,
            "network": NETWORKS[0],
            "program": BOOK_ZERO.name,
        },
    )


def stage_view(*, stage: int, **choices: Any) -> View:
    """Show one state."""
    steps = {every: step.step(run_at(stage=every, **choices)) for every in ZERO_STAGES}
    held = {every: memory.per_rank(each.run.training) for every, each in steps.items()}
    capacity = steps[stage].run.cluster.node.chip.memory
    figure = figures.memory_and_time(
        {_name(every): parts for every, parts in held.items()},
        {_name(every): _parts(each) for every, each in steps.items()},
        _name(stage),
        capacity,
        alt=(
            f"Memory of a rank and time of a step of {choices['model']} on {choices['ranks']} "
            "GPUs, by stage of ZeRO."
        ),
    )
    fits = {every: sum(parts.values()) <= capacity for every, parts in held.items()}
    words = _name(stage).capitalize(), _fitting(steps[stage].run, fits), _time(steps, stage)
    return View(figure, " ".join(words), _table(held, steps))


@cache
def run_at(*, model: str, stage: int, ranks: int, batch: int, network: str, program: str) -> Run:
    """Return the run of one state."""
    training = Training(
        spec=models.published(model).spec,
        layout=Layout(dp=ranks, zero=stage),
        microbatch=batch,
        sequence=SEQUENCE if model != "GPT-2 XL" else SEQUENCE // 2,
        program=PROGRAMS[program],
    )
    return Run(training=training, cluster=machines.cluster(network, ranks))


def _parts(each: Step) -> dict[str, float]:
    update = each.parts["update"]
    return {"computing": each.computing - update, "update": update, "waiting": each.waiting}


def _name(stage: int) -> str:
    return f"stage {stage}"


def _fitting(run: Run, fits: dict[int, bool]) -> str:
    words = remedies.verdict(run.training, run.cluster.node.chip.memory)
    words = words.replace("does not fit", "<b>does not fit</b>").replace("fits:", "<b>fits</b>:")
    enough = next((stage for stage, works in fits.items() if works), None)
    if enough is not None and enough < run.training.layout.zero:
        words += f", and stage {enough} would be enough"
    return f"{words}."


def _time(steps: dict[int, Step], stage: int) -> str:
    each = steps[stage]
    sent = sum(zero.sent_bytes(each.run.training).values())
    ratio = zero.ratio(each.run.training)
    share = each.waiting / each.seconds
    text = f"Each rank sends {units.text(sent, 'B')}"
    if stage > 0:
        text += (
            f", {'as much as' if ratio < MORE else f'{ratio:.3g} times what'} data parallelism does"
        )
    how = "hardly waits" if share < LITTLE else "<b>mostly waits</b>" if share > HALF else "waits"
    times = f"{units.text(each.waiting, 's')} of {units.text(each.seconds, 's')}"
    waits = f"and {how}: {times} ({units.percent(share)})"
    return f"{text}, {waits}.{_advice(each)}"


def _advice(each: Step) -> str:
    """Say how much larger the batch must be until a rank waits less than half of the time."""
    if each.waiting < HALF * each.seconds:
        return ""
    training = each.run.training
    times = 2
    while times <= 2**10:
        more = replace(training, microbatch=times * training.microbatch)
        larger = step.step(replace(each.run, training=more))
        if larger.waiting < HALF * larger.seconds:
            return f" With {times} times the batch it would wait less than half of the time."
        times *= 2
    return " No larger batch makes it wait less than half of the time."


def _table(held: dict[int, dict[str, float]], steps: dict[int, Step]) -> list[list[str]]:
    parts = dict.fromkeys(part for each in held.values() for part in each)
    rows = [
        [part, *(units.text(each.get(part, 0.0), "B") for each in held.values())] for part in parts
    ]
    rows.append(["memory", *(units.text(sum(each.values()), "B") for each in held.values())])
    sent = [sum(zero.sent_bytes(each.run.training).values()) for each in steps.values()]
    rows.append(["sent by each rank", *(units.text(nbytes, "B") for nbytes in sent)])
    rows.append(["step", *(units.text(each.seconds, "s") for each in steps.values())])
    rows.append(["waiting", *(units.text(each.waiting, "s") for each in steps.values())])
    busy = [each.computing / each.seconds for each in steps.values()]
    rows.append(["share of computing", *(f"{100 * share:.1f} %" for share in busy)])
    return [["one rank", *map(_name, held)], *rows]
