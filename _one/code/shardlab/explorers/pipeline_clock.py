"""The explorer of a pipeline that fills and drains: one batch, stepped through on a clock."""

from functools import cache

from shardlab import schedules
from shardlab.costs import units
from shardlab.costs.pipeline import timeline
from shardlab.costs.pipeline.timeline import Timeline
from shardlab.figures import pipeline as figures

from .explorer import Explorer
from .view import View

STAGES, MICROBATCHES = 4, 8
TAKES = {"F": 1, "B": 2}
LATER = 0.2  # opacity of an action that has not begun


def explorer() -> Explorer:
    """Step through a batch: see which stages compute, and how much each holds."""
    end = int(max(_played(name).makespan for name in ("GPipe", "1F1B")))
    return Explorer(
        clock_view,
        {"schedule": ["GPipe", "1F1B"], "clock": list(range(end + 1))},
        title="A pipeline fills and drains",
        labels={"clock": "Clock (forward of a stage: 1)"},
        default={"schedule": "GPipe", "clock": end},
        steps="clock",
    )


def clock_view(*, schedule: str, clock: int) -> View:
    """Show one state."""
    run = _played(schedule)
    stages = range(STAGES)
    steps = [run.held(stage) for stage in stages]
    alt = f"{schedule}, {STAGES} stages, {MICROBATCHES} microbatches, at {clock} on the clock."
    figure = figures.gantt_and_memory(run.events(), steps, unit="forward of a stage = 1", alt=alt)
    for bar in figure.data:
        if bar.type == "bar":
            bar.marker.opacity = [1.0 if begin <= clock else LATER for begin in bar.base]
    figure.add_shape(type="line", x0=clock, x1=clock, yref="paper", y0=0, y1=1, line_width=2)
    events = run.events()
    now = {e.rank: e.op for e in events if e.start <= clock < e.end}
    held = [[0, *(n for time, n in each if time <= clock)][-1] for each in steps]
    rows = [["stage", "computes", "microbatches held"]]
    rows += [[str(s), now.get(s, "waits"), f"{held[s]:.3g}"] for s in stages]
    return View(figure, _sentence(run, clock, len(now), max(held)), rows)


@cache
def _played(schedule: str) -> Timeline:
    return timeline.play(schedules.make(schedule, STAGES, MICROBATCHES), TAKES)


def _sentence(run: Timeline, clock: int, computing: int, most: float) -> str:
    if clock >= run.makespan:
        share = units.percent(run.bubble_of_total)
        peak = f"The fullest stage held the activations of {max(run.peaks()):.3g} microbatches."
        return f"The batch is done after {clock}: <b>{share} of all time was bubble</b>. {peak}"
    many = "1 microbatch" if most == 1 else f"{most:.3g} microbatches"
    verb = "computes" if computing == 1 else "compute"
    return (
        f"At {clock}, <b>{computing} of {STAGES} stages {verb}</b>; "
        f"the fullest stage holds the activations of {many}."
    )
