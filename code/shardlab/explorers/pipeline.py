"""The explorers of pipeline parallelism: a schedule on a clock, and where to cut a model."""

from functools import cache
from itertools import pairwise

from shardlab import schedules
from shardlab.costs import memory, programs, units
from shardlab.costs.facts import chips, models
from shardlab.costs.pipeline import balance, bubble, stage_costs, timeline
from shardlab.costs.pipeline.balance import Layer, Partition
from shardlab.costs.pipeline.timeline import Timeline
from shardlab.costs.training import Training
from shardlab.figures import pipeline as figures
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

SCHEDULES = {  # the text in the menu -> name and chunks
    "one microbatch at a time": ("naive", 1),
    "GPipe": ("GPipe", 1),
    "1F1B": ("1F1B", 1),
    "interleaved 1F1B, 2 chunks": ("interleaved", 2),
    "interleaved 1F1B, 4 chunks": ("interleaved", 4),
    "ZB-H1": ("ZB-H1", 1),
    "ZB-H2": ("ZB-H2", 1),
    "ZB-V, 2 chunks": ("ZB-V", 2),
    "DualPipe-V, 2 chunks": ("DualPipe-V", 2),
}
# Forward, input gradient and weight gradients of a whole stage; attention has no weights, and the
# backward of FlashAttention takes 2.5 times its forward.
DURATIONS = {
    "1 : 1 : 1 (matrices only)": (1.0, 1.0, 1.0),
    "3 : 4.5 : 2 (half as much attention)": (1.0, 4.5 / 3, 2 / 3),
}
BETTER = 0.98  # a time below this share of another is worth mentioning


def schedules_explorer() -> Explorer:
    """Choose a schedule and its sizes: see a timeline, the memory of each stage, and the bubble."""
    return Explorer(
        schedule_view,
        {
            "schedule": list(SCHEDULES),
            "stages": [2, 3, 4],
            "microbatches": [4, 8],
            "durations": list(DURATIONS),
            "latency": [0.0, 0.25],
        },
        title="A batch in a pipeline",
        labels={
            "durations": "Forward : input gradient : weight gradients",
            "latency": "Time of a message (forward: 1)",
        },
        default={"schedule": "1F1B", "stages": 4, "microbatches": 8},
    )


def schedule_view(
    *, schedule: str, stages: int, microbatches: int, durations: str, latency: float
) -> View:
    """Show one state."""
    run = _play(schedule, stages, microbatches, durations, latency)
    chunks = run.schedule.num_chunks
    held = [run.held(stage, activation=1 / chunks) for stage in range(stages)]
    figure = figures.gantt_and_memory(
        run.events(),
        held,
        unit="forward of a stage = 1",
        alt=(
            f"{schedule}, {stages} stages, {microbatches} microbatches: "
            "what each stage does, and what it holds."
        ),
    )
    sentence = _schedule_sentence(run, schedule, durations, latency)
    return View(figure, sentence, _schedule_table(run, durations, latency))


@cache
def _play(
    schedule: str, stages: int, microbatches: int, durations: str, latency: float
) -> Timeline:
    name, chunks = SCHEDULES[schedule]
    takes = {
        kind: seconds / chunks for kind, seconds in zip("FIW", DURATIONS[durations], strict=True)
    }
    made = schedules.make(name, stages, microbatches, chunks if name == "interleaved" else None)
    return timeline.play(made, takes, latency=latency)


def _fullest(run: Timeline) -> float:
    """Return the most that a stage holds, in microbatches of a whole stage."""
    most: float = max(run.peaks(activation=1 / run.schedule.num_chunks))
    return most


def _schedule_sentence(run: Timeline, schedule: str, durations: str, latency: float) -> str:
    p, m = run.schedule.num_stages, run.schedule.num_microbatches
    share = f"<b>{units.percent(run.bubble_of_total)} of all time is bubble</b>"
    ideal = f"{units.percent(run.bubble_of_ideal)} of the time that computing takes"
    held = f"The fullest stage holds the activations of {_fullest(run):.3g} of {m} microbatches."
    return f"{share}, or {ideal}. {held} {_advice(run, schedule, (p, m, durations, latency))}"


def _advice(run: Timeline, schedule: str, rest: tuple[int, int, str, float]) -> str:
    """Name the fastest schedule that needs no more memory; else say what more microbatches do."""
    others = {name: _play(name, *rest) for name in SCHEDULES if name != schedule}
    fitting = {name: other for name, other in others.items() if _fullest(other) <= _fullest(run)}
    fastest = min(fitting, key=lambda name: fitting[name].makespan, default="")
    if fastest and fitting[fastest].makespan < BETTER * run.makespan:
        saved = units.percent(1 - fitting[fastest].makespan / run.makespan)
        return f"{fastest} would save {saved} of the time and need no more memory."
    stages, microbatches, durations, latency = rest
    twice = _play(schedule, stages, 2 * microbatches, durations, latency)
    if twice.bubble_of_total < BETTER * run.bubble_of_total:
        bubble_then = units.percent(twice.bubble_of_total)
        return f"With {2 * microbatches} microbatches the bubble would be {bubble_then}."
    return "More microbatches would not help, because only one stage computes at a time."


def _schedule_table(run: Timeline, durations: str, latency: float) -> list[list[object]]:
    p = run.schedule.num_stages
    m = run.schedule.num_microbatches
    chunks = run.schedule.num_chunks
    takes = {
        kind: seconds / chunks for kind, seconds in zip("FIW", DURATIONS[durations], strict=True)
    }
    formula = (
        "only without latency" if latency else bubble.condition(run.schedule.name, p, m, takes)
    )
    waits = f"holds {formula}" if formula and not latency else formula
    if not formula:
        waits = f"{bubble.waiting(run.schedule.name, p, m, takes):.4g}"
    return [
        ["one batch", "value"],
        ["time (forward of a stage = 1)", run.makespan],
        ["time that a stage computes", run.busy[0]],
        ["bubble, of all time", f"{100 * run.bubble_of_total:.1f} %"],
        ["bubble, of the time that computing takes", f"{100 * run.bubble_of_ideal:.1f} %"],
        ["waiting of a stage between its first and last action, at most", max(run.waiting_inside)],
        ["waiting, by the paper's formula", waits],
        [
            "activations of the stages (microbatches)",
            ", ".join(f"{x:.3g}" for x in run.peaks(activation=1 / chunks)),
        ],
        ["messages of a microbatch", 2 * run.schedule.num_crossings],
    ]


# ---- where to cut --------------------------------------------------------------------------------

MODEL = "Llama 3 8B"
CHIP = chips.chip("H100 SXM 80 GB")
STAGES = 4
TRAINING = Training(
    spec=models.published(MODEL).spec,
    layout=Layout(pp=STAGES),
    num_microbatches=STAGES,  # as many as 1F1B ever holds
    sequence=8192,
    program=programs.BOOK,
)


def balancer() -> Explorer:
    """Choose the layers of each stage: see its time and memory, the slowest stage, the full one."""
    choices = [6, 7, 8, 9, 10]
    return Explorer(
        cut_view,
        {"first": choices, "second": choices, "third": choices},
        title=f"{MODEL} on {STAGES} stages of one H100 each",
        labels={
            "first": "Layers on stage 0, with the embedding",
            "second": "Layers on stage 1",
            "third": "Layers on stage 2 (stage 3: all others)",
        },
        default={"first": 8, "second": 8, "third": 8},
    )


def cut_view(*, first: int, second: int, third: int) -> View:
    """Show one state."""
    names = stage_costs.names(TRAINING)
    edges = [0, first + 1, first + second + 1, first + second + third + 1, len(names)]
    stages = [range(a, b) for a, b in pairwise(edges)]
    held, beside = stage_costs.held(TRAINING), stage_costs.beside(TRAINING)
    cut = balance.measure(_pieces(), stages, held, beside)
    figure = figures.cut(
        cut.seconds,
        [_parts(cut, stage) for stage in range(STAGES)],
        capacity=CHIP.memory,
        alt=(
            f"{', '.join(_counts(cut))} layers on the stages: "
            "how long each takes, and the memory that it needs."
        ),
    )
    return View(figure, _cut_sentence(cut), _cut_table(cut, names))


@cache
def _pieces() -> list[Layer]:
    return stage_costs.pieces(TRAINING, CHIP)


@cache
def _best() -> Partition:
    return stage_costs.cut(TRAINING, CHIP)


def _parts(cut: Partition, stage: int) -> dict[str, float]:
    """Split what a stage holds; the logits are among the activations."""
    layers = [_pieces()[i] for i in cut.stages[stage]]
    margin = 1 + TRAINING.program.margin
    states = sum(layer.states for layer in layers) / margin
    kept = sum(layer.activations for layer in layers) / margin
    recipe = TRAINING.recipe
    shares = {part: getattr(recipe, part) / recipe.bytes_per_parameter for part in memory.CUT_FROM}
    held = {part: share * states for part, share in shares.items()}
    held["activations"] = stage_costs.held(TRAINING)[stage] * kept
    held["buffers"] = sum(memory.buffers(TRAINING, stage).values())
    return {**held, "overhead": cut.nbytes[stage] - sum(held.values())}


def _counts(cut: Partition) -> list[str]:
    """Count the layers of each stage, without embedding and head."""
    ends = [1, *[0] * (STAGES - 2), 1]
    return [str(len(stage) - end) for stage, end in zip(cut.stages, ends, strict=True)]


def _cut_sentence(cut: Partition) -> str:
    best = _best()
    slowest = max(cut.seconds)
    text = f"Stage {cut.slowest} is the slowest, with {units.text(slowest, 's')} for a microbatch; "
    text += f"the stages wait {units.percent(cut.waiting)} of the time for it."
    full = [
        f"stage {stage} ({units.text(nbytes, 'B')})"
        for stage, nbytes in enumerate(cut.nbytes)
        if nbytes > CHIP.memory
    ]
    if full:
        needed = " and ".join(full)
        limit = units.text(CHIP.memory, "B")
        text = f"<b>It does not fit</b>: {needed} in {limit}. If it did fit: {text}"
    if full or slowest > max(best.seconds):
        layers = ", ".join(_counts(best))
        faster = units.text(max(best.seconds), "s")
        return f"{text} The best cut that fits has {layers} layers: {faster}."
    return f"{text} <b>No cut that fits is faster.</b>"


def _cut_table(cut: Partition, names: list[str]) -> list[list[str]]:
    rows = [["stage", "holds", "time of a microbatch", "microbatches held", "memory"]]
    held = stage_costs.held(TRAINING)
    for number, (stage, count) in enumerate(zip(cut.stages, held, strict=True)):
        holds = f"{names[stage.start]} to {names[stage.stop - 1]}"
        nbytes = units.text(cut.nbytes[number], "B")
        rows.append([str(number), holds, units.text(cut.seconds[number], "s"), str(count), nbytes])
    return rows
