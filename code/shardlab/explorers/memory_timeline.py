"""Memory through one step, moment by moment, with and without recomputation.

memory_timeline.js draws it at the moment to which the reader moves the clock.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from shardlab.costs import units
from shardlab.costs.facts import hardware, models
from shardlab.costs.memory import overhead, timeline
from shardlab.costs.memory.timeline import Moment
from shardlab.costs.training import Training
from shardlab.figures.memory import PARTS

from .moving import MovingPicture, clock, moving, switch
from .page import table

MODEL, CHIP = "GPT-2 XL", "A100 SXM 40 GB"
SEQUENCES, SEQUENCE = 8, 1024  # of the microbatch; tokens of each
EVERY = 12  # layers that Back and Next pass at a time
# From the bottom up; the first two do not change during a step.
ORDER = ["parameters", "optimizer", "gradients", "activations", "logits", "buffers", "overhead"]
SHOWN = [  # in the table
    "start",
    "forward of layer 24",
    "forward of the head",
    "backward of the head begins",
    "backward of layer 24 begins",
    "update",
]
CHANGED = ["activations", "buffers", "overhead"]  # by recomputation


@dataclass(frozen=True)
class MemoryStep:
    """One step on the chip, with what it holds at each moment."""

    recomputation: str

    @cached_property
    def training(self) -> Training:
        """Return the step."""
        return Training(
            spec=models.published(MODEL).spec,
            microbatch=SEQUENCES,
            sequence=SEQUENCE,
            recomputation=self.recomputation,
        )

    @cached_property
    def moments(self) -> list[Moment]:
        """List the moments of the step."""
        return timeline.through_step(self.training)

    @cached_property
    def held(self) -> list[dict[str, float]]:
        """List the bytes of each part at each moment, overhead included."""
        found = []
        for moment in self.moments:
            beside = overhead.overhead(self.training, sum(moment.held.values()))
            found.append({**moment.held, "overhead": sum(beside.values())})
        return found

    @property
    def peak(self) -> int:
        """Return the number of the moment that holds the most."""
        return self.moments.index(timeline.peak(self.moments))

    @property
    def verdict(self) -> str:
        """Say whether the step fits."""
        most, capacity = sum(self.held[self.peak].values()), hardware.chip(CHIP).memory
        fits = "fits" if most <= capacity else "does not fit"
        return f"The step {fits}: its peak is {gigabytes(most)} of {gigabytes(capacity)} GB."

    def drawn(self) -> dict[str, object]:
        """Return what memory_timeline.js draws: MB by part, time in forwards of a layer."""
        return {
            "times": [round(moment.time, 2) for moment in self.moments],
            "held": [[round(each[part] / units.MB) for each in self.held] for part in ORDER],
            "peak": self.peak,
            "verdict": self.verdict,
        }


def gigabytes(nbytes: float) -> str:
    """Write bytes as memory_timeline.js does."""
    return f"{nbytes / units.GB:.1f}"


def compared(nbytes: float) -> str:
    """Write the bytes of all parts, and say whether they are too much."""
    return gigabytes(nbytes) + ": too much" * (nbytes > hardware.chip(CHIP).memory)


def layers(moments: list[Moment]) -> list[int]:
    """Return the number of the layer at work before each moment, 0 for none."""
    num_layers = sum(moment.doing == "forward of the layer" for moment in moments)
    forward = range(1, num_layers + 1)
    backward = (layer for layer in reversed(forward) for _ in ("begins", "ends"))
    numbers = iter([*forward, *backward])
    return [next(numbers) if moment.doing.endswith("layer") else 0 for moment in moments]


def doing(moments: list[Moment]) -> list[str]:
    """Say what is done before each moment, with the number of the layer."""
    numbered = zip(moments, layers(moments), strict=True)
    found = [moment.doing.replace("the layer", f"layer {layer}") for moment, layer in numbered]
    begins = [words == after for words, after in pairwise([*found, ""])]
    return [words + " begins" * first for words, first in zip(found, begins, strict=True)]


def stops(moments: list[Moment]) -> list[int]:
    """List the moments at which Back and Next stop: of the layers every twelfth."""
    return [n for n, layer in enumerate(layers(moments)) if layer % EVERY == 0]


def rows(keeping: MemoryStep, again: MemoryStep) -> list[list[str]]:
    """Return the step as a table, its header first: GB of each part at some moments."""
    words = doing(keeping.moments)
    shown = [words.index(each) for each in SHOWN]
    body = []
    for step, suffix, parts in ((keeping, "", ORDER), (again, ", recomputing", CHANGED)):
        held = [step.held[n] for n in shown]
        body += [[part + suffix, *(gigabytes(each[part]) for each in held)] for part in parts]
        body.append([f"sum{suffix}", *(compared(sum(each.values())) for each in held)])
    return [["GB", *SHOWN], *body]


class MemoryTimeline(MovingPicture):
    """One step and its memory: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.keeping, self.again = MemoryStep("none"), MemoryStep("full")

    def drawn(self) -> str:
        """Return what memory_timeline.js draws."""
        moments = self.keeping.moments
        return json.dumps(
            {
                "chip": CHIP,
                "capacity": hardware.chip(CHIP).memory / units.MB,
                "parts": {part: PARTS[part]["color"] for part in ORDER},
                "doing": doing(moments),
                "stops": stops(moments),
                "steps": [self.keeping.drawn(), self.again.drawn()],
            },
            separators=(",", ":"),
        )

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        picture = (
            f'<p class="memory-state"></p>{clock()}'
            f'<div class="memory-chart" data-step="{html.escape(self.drawn())}"></div>'
            '<ul class="memory-parts"></ul>'
        )
        again = "Recomputation: layers keep only their inputs, and backward computes the rest again"
        title = "Memory of one step"
        return moving("memory-timeline", title, picture, self.table(), hands=switch(again))

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        return table(rows(self.keeping, self.again))
