"""The race of two all-reduces on one clock: through rank 0, and around a ring.

race.js draws what the plans do at the time to which the reader moves the clock.
"""

from __future__ import annotations

import html
import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from shardlab import exchanges
from shardlab.costs import units
from shardlab.costs.collectives import exchanges as counts
from shardlab.costs.facts import hardware, models
from shardlab.exchanges import Plan

from .moving import MovingPicture, clock, moving
from .page import table

NUM_RANKS = 4
PARAMETERS = models.num_parameters(models.published("Llama 3 8B").spec)
ELEMENT = 2  # bytes of a gradient
LINK = hardware.link("InfiniBand NDR")
SAME = 1e-3  # arrivals that lie closer, as a share of the race, are one moment


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One all-reduce of the race, with what is known after each of its steps, none included."""

    name: str
    plan: Plan

    def first(self, steps: int) -> Plan:
        """Return the first steps of the plan."""
        return replace(self.plan, steps=self.plan.steps[:steps])

    @cached_property
    def ends(self) -> list[float]:
        """Return the second at which each step is over."""
        steps = [replace(self.plan, steps=[step]) for step in self.plan.steps]
        seconds = [counts.cost(step, PARAMETERS, ELEMENT).seconds(LINK) for step in steps]
        return list(accumulate(seconds, initial=0.0))

    @cached_property
    def carried(self) -> list[tuple[float, float]]:
        """Return the bytes into the busiest rank and out of it, after each step."""
        sizes = counts.piece_bytes(self.plan, PARAMETERS, ELEMENT)
        found = []
        for steps in range(len(self.ends)):
            sent, received = counts.bytes_by_rank(self.first(steps), sizes)
            found.append(max(zip(received, sent, strict=True), key=sum))
        return found

    def link(self, steps: int) -> str:
        """Say what the busiest link has carried."""
        into, out = (units.text(nbytes, "B") for nbytes in self.carried[steps])
        return f"{into} in, {out} out"

    def state(self, steps: int) -> str:
        """Say how far the all-reduce is."""
        last = len(self.ends) - 1
        if steps == last:
            return f"finished after {written(self.ends[-1])}"
        return f"{steps} of {last} steps done"

    def drawn(self, most: float) -> str:
        """Return what race.js draws; most: the bytes at which a meter is full."""
        everyone = range(len(self.ends))
        held = exchanges.contents(self.plan, exchanges.everyones(self.plan))
        return json.dumps(
            {
                "ends": self.ends,
                "held": [[[len(cell) for cell in row] for row in rows] for rows in held],
                "moves": [
                    [(move.source, move.to, move.pieces.start, move.pieces.stop) for move in step]
                    for step in self.plan.steps
                ],
                "link": [self.link(steps) for steps in everyone],
                "share": [round(sum(self.carried[steps]) / most, 4) for steps in everyone],
                "state": [self.state(steps) for steps in everyone],
            }
        )


def written(second: float) -> str:
    """Write a time as race.js does."""
    return f"{second:.2f} s"


def lanes() -> list[Lane]:
    """List the two that race."""
    return [
        Lane(name="Through rank 0", plan=exchanges.naive_all_reduce(NUM_RANKS)),
        Lane(name="Around a ring", plan=exchanges.ring_all_reduce(NUM_RANKS)),
    ]


def moments(racing: list[Lane]) -> list[float]:
    """List the seconds at which a message has arrived, from the start of the race."""
    found = [0.0]
    for second in sorted(second for lane in racing for second in lane.ends):
        if second - found[-1] > SAME * racing[0].ends[-1]:
            found.append(second)
        elif second:
            found[-1] = second
    return found


def rows(racing: list[Lane]) -> list[list[str]]:
    """Return the race as a table, its header first."""
    header = ["clock"]
    for lane in racing:
        header += [lane.name, "its busiest link"]
    body = []
    for second in moments(racing):
        row = [written(second)]
        for lane in racing:
            steps = bisect_right(lane.ends, second) - 1
            row += [lane.state(steps), lane.link(steps)]
        body.append(row)
    return [header, *body]


class Race(MovingPicture):
    """The race: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.lanes = lanes()

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        most = max(sum(lane.carried[-1]) for lane in self.lanes)
        drawn = "".join(
            f'<div class="race-lane" data-light="{lane.plan.name.split()[0]}" '
            f'data-lane="{html.escape(lane.drawn(most))}"><b>{lane.name}</b></div>'
            for lane in self.lanes
        )
        seconds = moments(self.lanes)
        at = f'max="{seconds[-1]}" step="any" value="0" data-moments="{json.dumps(seconds)}"'
        picture = f'{clock(at)}<div class="race-lanes">{drawn}</div>'
        return moving("race", "Two all-reduces race", picture, self.table())

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        return table(rows(self.lanes))
