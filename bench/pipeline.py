"""Step time of our pipeline against torch.distributed.pipelining: same model, same schedules, same ranks, taking turns.

Also: how long it takes to play a schedule on a clock, by the number of its actions.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import race
import record
import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from shardlab import comm, schedules
from shardlab.costs.pipeline import timeline
from shardlab.files.terminal import no_arguments
from shardlab.model.spec import TransformerSpec
from shardlab.plain import pipeline as plain
from shardlab.ranks import transformer
from shardlab.ranks.pipeline import Pipeline, partition
from shardlab.schedules import Schedule

ENGINES: dict[str, Any] = {  # our name of the schedule -> torch's
    "GPipe": pipelining.ScheduleGPipe,
    "1F1B": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "ZB-H1": pipelining.ScheduleInterleavedZeroBubble,
    "ZB-V": pipelining.ScheduleZBVZeroBubble,
}
AGAINST_TORCH = {name: f"{name}, torch" for name in ENGINES}
PLAIN = {"GPipe": "GPipe, plain", "1F1B": "1F1B, plain"}
MODELS = {  # (hidden size, layers, samples in a microbatch, tokens per sample, rounds)
    "small": (64, 8, 2, 32, 20),
    "medium": (160, 8, 2, 64, 12),
}
NUM_MICROBATCHES = 8
Step = Callable[[Tensor, Tensor], Any]


def ours(model: transformer.Transformer, schedule: Schedule, group: comm.Group) -> tuple[nn.Module, Step]:
    """Our pipeline, and one step of it."""
    pipeline = Pipeline(partition.split(model, schedule, group.rank()), schedule, group)
    return pipeline.parts, pipeline.step


def torchs(model: transformer.Transformer, schedule: Schedule, group: comm.Group) -> tuple[nn.Module, Step]:
    """The same parts in torch's engine."""
    parts, numbers = partition.split(model, schedule, group.rank()), schedule.parts[group.rank()]
    first, last = 0 in numbers, schedule.num_parts - 1 in numbers
    stages = [
        pipelining.PipelineStage(part, number, schedule.num_parts, comm.device(group), group=group)
        for part, number in zip(parts, numbers, strict=True)
    ]
    alone = schedule.name in ("GPipe", "1F1B")
    engine = ENGINES[schedule.name](stages[0] if alone else stages, schedule.num_microbatches, loss_fn=transformer.loss)

    def step(tokens: Tensor, targets: Tensor) -> None:
        engine.step(*([tokens] if first else []), **({"target": targets} if last else {}))

    return nn.ModuleList(parts), step


def plains(model: transformer.Transformer, schedule: Schedule, group: comm.Group) -> tuple[nn.Module, Step]:
    """The plain file's loop for the same schedule."""
    stage = plain.Stage(model, group)
    order = {"GPipe": plain.gpipe, "1F1B": plain.one_forward_one_backward}[schedule.name]

    def step(tokens: Tensor, targets: Tensor) -> None:
        count = schedule.num_microbatches
        stage.step(list(zip(tokens.chunk(count), targets.chunk(count), strict=True)), order)

    return stage.layers, step


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round; all must arrive at the same gradients."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(spec.vocab_size, (samples * NUM_MICROBATCHES, spec.context_length + 1), generator=generator)
    contenders: dict[str, tuple[nn.Module, Step]] = {}
    for name, theirs in AGAINST_TORCH.items():
        schedule = schedules.make(name, group.size(), NUM_MICROBATCHES)
        for each, build in ((name, ours), (theirs, torchs), *([(PLAIN[name], plains)] if name in PLAIN else [])):
            torch.manual_seed(0)
            contenders[each] = build(transformer.Transformer(spec), schedule, group)

    def one_step(name: str) -> None:
        parts, step = contenders[name]
        parts.zero_grad()
        step(tokens[:, :-1], tokens[:, 1:])

    seconds = race.take_turns(group, {name: functools.partial(one_step, name) for name in contenders}, rounds)
    for names in (*AGAINST_TORCH.items(), *PLAIN.items()):
        for mine, its in zip(*(contenders[name][0].parameters() for name in names), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-3, atol=1e-5)
    return seconds


def playing(p: int = 64, v: int = 4, repetitions: int = 5) -> list[dict[str, float]]:
    """Seconds to play interleaved 1F1B on a clock: median of several, by the number of actions."""
    rows = []
    for m in (64, 128, 256, 512):
        schedule, taken = schedules.make("interleaved", p, m, v), []
        for _ in range(repetitions):
            start = time.perf_counter()
            timeline.play(schedule, {"F": 1.0, "B": 2.0})
            taken.append(time.perf_counter() - start)
        row: dict[str, float] = {"stages": p, "microbatches": m, "chunks": v}
        rows.append({**row, "actions": sum(map(len, schedule.orders)), "seconds": round(statistics.median(taken), 4)})
    return rows


def main() -> None:
    race.unchecked()
    rows = race.all_rows(race_models, MODELS, AGAINST_TORCH, plain=PLAIN, style="llama")
    overall = round(statistics.median(row["ours / torch"][name]["median"] for row in rows for name in ENGINES), 3)
    by_schedule = race.over_rows(rows)
    print("median over all rows, ours / torch:", overall, by_schedule)
    result = {"median of ours / torch": overall, "by schedule": by_schedule, "microbatches": NUM_MICROBATCHES}
    print("written to", record.write("pipeline", {**result, "rows": rows, "playing": playing()}).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
