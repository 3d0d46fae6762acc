"""The figures of placement: traffic of each axis, time of a step, the knee of the network."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style
from .bars import bar_rows
from .lines import line, look
from .trace import marker

AXES = {
    "tp": marker(style.COLOR["tp"], ""),
    "dp": marker(style.COLOR["dp"], "/"),
    "pp": marker(style.COLOR["pp"], "x"),
}
PARTS = {
    "computing": marker(style.COLOR["compute"], ""),
    "waiting": marker(style.COLOR["idle"], "."),
}
NAMES = {"tp": "tensor parallel", "dp": "data parallel", "pp": "pipeline"}
BAR, FRAME = 60, 120  # pixels
TERABITS = [0.0125, 0.05, 0.2, 0.8, 3.2]  # per second; few, for a phone


def crossings(carried: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """Draw the bytes of a step through the busiest link of each kind: kind -> axis -> bytes."""
    busiest = {
        f"busiest {kind if kind != 'network' else 'network card'}": {
            NAMES[axis]: each[axis] for axis in AXES
        }
        for kind, each in carried.items()
    }
    return style.figure(
        bar_rows(
            busiest, {NAMES[axis]: axis_look for axis, axis_look in AXES.items()}, "GB", scale=1e-9
        ),
        x=style.axis("GB in one step, one direction", rangemode="tozero"),
        y=style.axis(autorange="reversed"),
        alt="Bytes through the busiest link of each kind, by axis of the layout.",
        height=FRAME + BAR * max(len(carried), 2),
        barmode="stack",
    )


def steps(parts: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """Draw the same step on several machines: machine -> "computing", "waiting" -> seconds."""
    return style.figure(
        bar_rows(parts, PARTS, "s"),
        x=style.axis("step (s), replayed", rangemode="tozero"),
        y=style.axis(autorange="reversed"),
        alt="Time of the same training step on several machines: computing and waiting.",
        height=FRAME + 36 * len(parts),
        barmode="stack",
    )


def knee(
    rates: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    *,
    have: float | None = None,
) -> go.Figure:
    """Draw the time of a step against the bandwidth between nodes, 1 without a limit.

    rates: bytes/s of one node. seconds: layout -> how many times as long a step takes at each rate.
    have: bytes/s that the node has.
    """
    terabits = [8 * rate / 1e12 for rate in rates]
    traces = [
        line(terabits, each, name, *look(i)) for i, (name, each) in enumerate(seconds.items())
    ]
    if have is not None:  # a shape has no line in the legend: an empty trace stands for it
        traces.append(line([None], [None], "what the node has", style.COLOR["limit"], "dash"))
    ticks = [tick for tick in TERABITS if terabits[0] <= tick <= terabits[-1]]
    highest = max(max(each) for each in seconds.values())
    return style.figure(
        traces,
        x=style.axis("between nodes (Tb/s of one node)", type="log", tickvals=ticks),
        y=style.axis("step time (1 = no limit)", range=[0.9, min(4.0, 1.05 * highest)]),
        alt="Time of a training step against the bandwidth between nodes.",
        shapes=[] if have is None else [_upright(8 * have / 1e12)],
    )


def _upright(x: float) -> dict[str, Any]:
    look = {"color": style.COLOR["limit"], "width": 2, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": look}
