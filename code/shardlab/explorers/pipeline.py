"""One batch in a pipeline: the same tiles of work walk from one schedule to the next.

pipeline.js draws the schedule, the clock and the microbatch that the reader chooses. `chart` draws
one schedule as a figure, `degrees` those of any number of stages and microbatches.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from plotly.graph_objects import Figure

from shardlab import schedules
from shardlab.costs import units
from shardlab.costs.pipeline import timeline
from shardlab.costs.pipeline.timeline import Timeline
from shardlab.figures import pipeline as figures
from shardlab.schedules import Action

from .explorer import Explorer
from .moving import MovingPicture, clock, moving, radios
from .page import table
from .view import View

STAGES, MICROBATCHES, CHUNKS = 4, 8, 2
SHOWN = ("GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-V")
TICK = 4  # units of time in a tick, which a stage takes for a forward, an input gradient, a W
MESSAGES = {"no time": 0, "¼ tick": TICK // 4}  # how long one travels
PARTS = CHUNKS * STAGES  # the thinnest parts of the model that any schedule cuts
PIECE = TICK // CHUNKS  # for which a tile lasts: a third of the work of a part on a microbatch
HEIGHT = 358  # pixels: what four stages need, fewer have as well
WORK = "FIW"  # what is done to a part, in the order of its tiles


def chart(run: Timeline, *, alt: str = "") -> Figure:
    """Draw a schedule on a clock, and the activations of whole stages that each stage holds."""
    share = 1 / run.schedule.num_chunks
    held = [run.held(stage, activation=share) for stage in range(run.schedule.num_stages)]
    return figures.gantt_and_memory(run.events(), held, unit="forward of a stage = 1", alt=alt)


def degrees() -> Explorer:
    """Choose a schedule, its stages and microbatches: see the clock, and what each stage holds."""
    return Explorer(
        degrees_view,
        {"schedule": list(SHOWN), "stages": [2, 3, 4], "microbatches": [4, 8]},
        title="More stages, more microbatches",
        default={"schedule": "1F1B", "stages": 4, "microbatches": 8},
    )


def degrees_view(*, schedule: str, stages: int, microbatches: int) -> View:
    """Show one state; F, I and W of a whole stage take a unit of time each, messages none."""
    chunks = schedules.SCHEDULES[schedule].chunks or CHUNKS
    made = schedules.make(schedule, stages, microbatches, chunks)
    run = timeline.play(made, dict.fromkeys(WORK, 1 / chunks))
    peaks = run.peaks(activation=1 / chunks)
    sentence = (
        f"<b>{units.percent(run.bubble_of_total)} of all time is bubble</b>. The fullest stage "
        f"holds the activations of {max(peaks):.3g} of {microbatches} microbatches."
    )
    rows: list[list[object]] = [
        ["one batch", "value"],
        ["time (forward of a stage = 1)", run.makespan],
        ["bubble, of all time", f"{100 * run.bubble_of_total:.1f} %"],
        ["activations of the stages (microbatches)", ", ".join(f"{x:.3g}" for x in peaks)],
        ["messages of a microbatch", 2 * run.schedule.num_crossings],
    ]
    alt = f"{schedule}, {stages} stages, {microbatches} microbatches on a clock, and what is held."
    figure = chart(run, alt=alt)
    figure.update_layout(height=HEIGHT)
    return View(figure, sentence, rows)


@dataclass(frozen=True)
class Walk:
    """Where the tiles of one schedule lie, with messages that take `latency` units of time."""

    name: str
    latency: int = 0

    @cached_property
    def run(self) -> Timeline:
        """Play the schedule; a chunk takes its share of a tick."""
        chunks = schedules.SCHEDULES[self.name].chunks or CHUNKS
        made = schedules.make(self.name, STAGES, MICROBATCHES, chunks)
        takes = dict.fromkeys(WORK, TICK // chunks)
        return timeline.play(made, takes, latency=self.latency)

    @property
    def actions(self) -> list[tuple[int, Action, int, int]]:
        """List (stage, action, start, end)."""
        rows = zip(self.run.schedule.orders, self.run.spans, strict=True)
        return [
            (stage, action, start, end)
            for stage, (order, spans) in enumerate(rows)
            for action, (start, end) in zip(order, spans, strict=True)
        ]

    @property
    def wide(self) -> int:
        """How many of the thinnest parts a chunk has."""
        return CHUNKS // self.run.schedule.num_chunks

    @cached_property
    def tiles(self) -> list[tuple[int, int]]:
        """List (start, units of the action that it begins or 0), by microbatch, part and work."""
        found = {}
        for stage, action, start, end in self.actions:
            first = self.run.schedule.parts[stage][action.chunk] * self.wide
            parts = range(first, first + self.wide)
            way = parts if action.kind == "F" else reversed(parts)
            kinds = "IW" if action.kind == "B" else action.kind
            for n, (part, kind) in enumerate((part, kind) for part in way for kind in kinds):
                length = 0 if n else end - start
                found[action.microbatch, part, kind] = start + n * PIECE, length
        return [
            found[microbatch, part, kind]
            for microbatch in range(MICROBATCHES)
            for part in range(PARTS)
            for kind in WORK
        ]

    @property
    def gaps(self) -> list[tuple[int, int, int]]:
        """List (stage, start, end) of all waiting."""
        found = []
        for stage, spans in enumerate(self.run.spans):
            edges = [(0, 0), *spans, (self.run.makespan, self.run.makespan)]
            found += [
                (stage, end, start) for (_, end), (start, _) in pairwise(edges) if start > end
            ]
        return found

    def thread(self, microbatch: int) -> list[tuple[int, int, int, int]]:
        """List (stage, end, next stage, its start) from each action on the way to the next."""
        way = sorted(
            (start, end, stage)
            for stage, action, start, end in self.actions
            if action.microbatch == microbatch and action.kind != "W"
        )
        return [(stage, end, other, start) for (_, end, stage), (start, _, other) in pairwise(way)]

    def followed(self, microbatch: int) -> str:
        """Say when a microbatch is in flight, and how often stages send something of it."""
        size = PARTS * len(WORK)
        lie = [start for start, _ in self.tiles[microbatch * size : (microbatch + 1) * size]]
        sent = sum(here != there for here, _, there, _ in self.thread(microbatch))
        span = f"from tick {ticks(min(lie))} to {ticks(max(lie) + PIECE)}"
        return f"Microbatch {microbatch} is in flight {span}: {sent} messages."

    @property
    def peaks(self) -> list[float]:
        """Return the most that each stage holds, in microbatches of a whole stage."""
        return self.run.peaks(activation=1 / self.run.schedule.num_chunks)

    @property
    def waits(self) -> str:
        """Say how long each stage waits."""
        (waiting,) = set(self.run.waiting)
        return f"{ticks(waiting)} of {ticks(self.run.makespan)} ticks"

    @property
    def state(self) -> str:
        """Say what the schedule costs."""
        share = units.percent(self.run.bubble_of_total)
        most = f"{max(self.peaks):.3g} of {MICROBATCHES} microbatches"
        name = self.name[0].upper() + self.name[1:]
        return f"{name}: each stage waits {self.waits} ({share}), and the fullest holds {most}."

    def drawn(self) -> dict[str, object]:
        """Return what pipeline.js draws: times in units, amounts in pieces of the piles."""
        every = range(MICROBATCHES)
        return {
            "starts": [start for start, _ in self.tiles],
            "leads": "".join(str(length // PIECE) for _, length in self.tiles),
            "lanes": [self.run.schedule.homes[part // self.wide][0] for part in range(PARTS)],
            "gaps": self.gaps,
            "held": [self.run.held(stage, activation=self.wide) for stage in range(STAGES)],
            "look": " chunked" * (self.wide == 1) + " split" * self.run.schedule.splits_backward,
            "threads": [self.thread(each) for each in every],
            "followed": [self.followed(each) for each in every],
            "state": self.state,
        }


def ticks(time: float) -> str:
    """Write a time in ticks."""
    return f"{time / TICK:.4g}"


class Tiles(MovingPicture):
    """Five schedules of one batch: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.walks = [Walk(name, latency) for latency in MESSAGES.values() for name in SHOWN]

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        data = {
            "tick": TICK,
            "piece": PIECE,
            "last": max(walk.run.makespan for walk in self.walks),
            "most": [
                max(column) for column in zip(*(walk.peaks for walk in self.walks), strict=True)
            ],
            "walks": [walk.drawn() for walk in self.walks],
        }
        packed = html.escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))
        picture = (
            f'<p class="pipeline-state" aria-live="polite"></p>{clock()}'
            f'<div class="pipeline-picture" data-pipeline="{packed}"></div>'
            + radios(
                "pipeline-microbatch",
                "Follow a microbatch",
                ["none", *map(str, range(MICROBATCHES))],
            )
        )
        hands = radios("pipeline-schedule", "Schedule", SHOWN) + radios(
            "pipeline-message", "A message takes", MESSAGES
        )
        return moving("pipeline", "One batch in five schedules", picture, self.table(), hands=hands)

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        header = ["schedule", "stage", "does, in order", "waits", "if a message takes ¼ tick"]
        body = [
            [
                walk.name,
                str(stage),
                " ".join(map(str, order)),
                walk.waits,
                slow.waits,
                f"{most:.3g}",
            ]
            for walk, slow in zip(self.walks, self.walks[len(SHOWN) :], strict=False)
            for stage, (order, most) in enumerate(
                zip(walk.run.schedule.orders, walk.peaks, strict=True)
            )
        ]
        return table([[*header, "holds at most (microbatches)"], *body])
