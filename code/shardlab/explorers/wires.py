"""Sixteen ranks on two nodes: a rank's piece, its groups, and their wires in three orders of axes.

wires.js draws the rank and the order that the reader chooses.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cached_property

from shardlab.costs import composition, step, units
from shardlab.costs.composition import Edge
from shardlab.costs.facts import models, nodes
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.sharding import layout as layouts
from shardlab.sharding.layout import AXES_3D, Layout

from .moving import MovingPicture, moving, radios
from .page import table

LAYOUT = Layout(tp=4, dp=2, pp=2, zero=1)
TRAINING = Training(
    spec=models.published("Llama 3 8B").spec,
    layout=LAYOUT,
    program=BOOK,
    sequence=4096,
    microbatch=2,
    num_microbatches=4,
)
CLUSTER = nodes.cluster("DGX H100", 2)
ORDERS = (AXES_3D, ("tp", "pp", "dp"), ("dp", "pp", "tp"))  # each has another axis last
MOST = LAYOUT.tp * max(  # bytes of a tp group, which fill a meter
    sum(composition.sent(TRAINING, stage)["tp"].values()) for stage in range(LAYOUT.pp)
)
NTH = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Order:
    """One order of the axes, neighbours first: who is in which group, and what travels where."""

    axes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Write the axes as the chapter does."""
        return " · ".join(self.axes)

    @cached_property
    def messages(self) -> dict[str, dict[tuple[int, ...], list[Edge]]]:
        """List what neighbours send each other, as axis -> group -> edges."""
        return composition.messages(TRAINING, self.axes)

    @property
    def places(self) -> list[list[int]]:
        """Return the coordinates of each rank along AXES_3D."""
        found = [layouts.coordinates(rank, LAYOUT, self.axes) for rank in range(LAYOUT.ranks)]
        return [[place[axis] for axis in AXES_3D] for place in found]

    @cached_property
    def seconds(self) -> float:
        """Replay one step."""
        run = Run(training=TRAINING, cluster=CLUSTER)
        return replay(step.trace(run, self.axes, layers_at_a_time=4), CLUSTER).seconds

    @property
    def state(self) -> str:
        """Say what crosses the network, and how long a step takes."""
        left = composition.leaving(TRAINING, CLUSTER.node.gpus, self.axes)
        crossing = ", ".join(axis for axis in AXES_3D if left[axis])
        sent, seconds = units.text(sum(left.values()), "B"), units.text(self.seconds, "s")
        return f"{crossing} crosses the network: each node sends {sent}. A step takes {seconds}."

    def drawn(self) -> dict[str, object]:
        """Return what wires.js draws."""
        axes = {
            axis: [
                {
                    "ranks": group,
                    "wires": sorted({tuple(sorted((edge.source, edge.to))) for edge in edges}),
                    "share": [round(nbytes / MOST, 4) for nbytes in travelled(edges)],
                    "sent": f"ranks {', '.join(map(str, group))}: {told(edges)}",
                }
                for group, edges in self.messages[axis].items()
            ]
            for axis in AXES_3D
        }
        return {"places": self.places, "axes": axes, "state": self.state}

    def rows(self) -> list[list[str]]:
        """Return the order's part of the table: a row for each axis, and what a step takes."""
        held = {axis: " / ".join(names) for axis, names in shares().items()}
        body = []
        for axis in self.axes:
            each = self.messages[axis]
            groups = "; ".join(" ".join(map(str, group)) for group in each)
            inside, outside = zip(*(travelled(edges) for edges in each.values()), strict=True)
            sent = [units.text(max(nbytes), "B") for nbytes in (inside, outside)]
            body.append([self.name, axis, held[axis], groups, *sent])
        return [*body, [self.name, "all", self.state, "", "", ""]]


def travelled(edges: list[Edge]) -> tuple[float, float]:
    """Return the bytes of a group's edges inside nodes and between them."""
    crossing = sum(edge.nbytes for edge in edges if edge.crosses(CLUSTER.node.gpus))
    return sum(edge.nbytes for edge in edges) - crossing, crossing


def told(edges: list[Edge]) -> str:
    """Say what travels over which link."""
    pairs = zip(("NVLink", "network"), travelled(edges), strict=True)
    return ", ".join(f"{link} {units.text(nbytes, 'B')}" for link, nbytes in pairs if nbytes)


def shares() -> dict[str, list[str]]:
    """Name what the first, second ... rank of a group has, by axis."""
    stages = layouts.stages(TRAINING.spec.num_layers, LAYOUT.pp)
    each = TRAINING.microbatch * TRAINING.num_microbatches
    return {
        "tp": [f"{nth} quarter of each matrix" for nth in NTH[: LAYOUT.tp]],
        "dp": [
            f"sequences {n * each + 1} to {(n + 1) * each}; its optimizer steps the {NTH[n]} half"
            for n in range(LAYOUT.dp)
        ],
        "pp": [f"layers {stage.start} to {stage.stop - 1}" for stage in stages],
    }


class Neighbours(MovingPicture):
    """The ranks and their groups: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.orders = [Order(axes) for axes in ORDERS]

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        data = {"orders": [order.drawn() for order in self.orders], "shares": shares()}
        picture = html.escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False))
        names = (order.name for order in self.orders)
        return moving(
            "wires",
            "Groups and wires of a rank",
            f'<div class="wires-picture" data-wires="{picture}"></div>',
            self.table(),
            hands=radios("wires-order", "Order of the axes, neighbours first", names),
        )

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        header = ["order", "axis", "the ranks of a group have, in this order", "groups"]
        header += ["the busiest group sends over NVLink", "over the network"]
        return table([header, *(row for order in self.orders for row in order.rows())])
