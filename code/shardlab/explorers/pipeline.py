"""The explorer of pipeline parallelism: a schedule on a clock."""

from functools import cache

from plotly.graph_objects import Figure

from shardlab import schedules
from shardlab.costs import units
from shardlab.costs.pipeline import bubble, timeline
from shardlab.costs.pipeline.timeline import Timeline
from shardlab.figures import pipeline as figures

from .explorer import Explorer
from .view import View

SPOKEN = {"naive": "one microbatch at a time", "interleaved": "interleaved 1F1B"}
SCHEDULES = {  # the text in the menu -> name and chunks
    SPOKEN.get(name, name) + (f", {chunks} chunks" if chunks > 1 else ""): (name, chunks)
    for name, kind in schedules.SCHEDULES.items()
    for chunks in ([kind.chunks] if kind.chunks else [2, 4])
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
        per=["stages", "microbatches"],  # rows, and ticks in proportion
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
    alt = (
        f"{schedule}, {stages} stages, {microbatches} microbatches: "
        "what each stage does, and what it holds."
    )
    figure = chart(run, alt=alt)
    sentence = _schedule_sentence(run, schedule, durations, latency)
    return View(figure, sentence, _schedule_table(run, durations, latency))


def chart(run: Timeline, *, alt: str = "") -> Figure:
    """Draw a schedule on a clock, and the activations of whole stages that each stage holds."""
    share = 1 / run.schedule.num_chunks
    held = [run.held(stage, activation=share) for stage in range(run.schedule.num_stages)]
    return figures.gantt_and_memory(run.events(), held, unit="forward of a stage = 1", alt=alt)


@cache
def _play(
    schedule: str, stages: int, microbatches: int, durations: str, latency: float
) -> Timeline:
    name, chunks = SCHEDULES[schedule]
    takes = {
        kind: seconds / chunks for kind, seconds in zip("FIW", DURATIONS[durations], strict=True)
    }
    made = schedules.make(name, stages, microbatches, chunks)
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
