"""The figures of interconnects: bandwidths, the traffic of each axis, the knee of the network."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style
from .bars import bar_rows
from .lines import line, look
from .trace import marker

KINDS = {
    "NVLink": marker(style.GREEN, ""),
    "Infinity Fabric": marker(style.GREEN, "-"),
    "ICI": marker(style.GREEN, "+"),
    "PCIe": marker(style.BLUE, "/"),
    "network": marker(style.ORANGE, "x"),
}
AXES = {
    "tp": marker(style.PURPLE, ""),
    "dp": marker(style.ORANGE, "/"),
    "pp": marker(style.GREEN, "x"),
}
PARTS = {
    "computing": marker(style.COLOR["compute"], ""),
    "waiting": marker(style.COLOR["idle"], "."),
}
NAMES = {"tp": "tensor parallel", "dp": "data parallel", "pp": "pipeline"}
BAR, FRAME = 26, 120  # pixels
TICKS = [0.1, 1, 10, 100, 1000]  # GB/s
TERABITS = [0.0125, 0.05, 0.2, 0.8, 3.2]  # per second; few, for a phone


def generations(rates: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Draw the bandwidth of one GPU in one direction: machine -> kind of link -> bytes/s."""
    pairs = [
        {
            **_bar(
                kind,
                list(rates),
                [each.get(kind, 0) / 1e9 or None for each in rates.values()],
                kind_look,
            ),
            "text": [f"{each[kind] / 1e9:.3g}" if kind in each else "" for each in rates.values()],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": f"%{{y}}, {kind}: %{{x:.4g}} GB/s<extra></extra>",
        }
        for kind, kind_look in KINDS.items()
    ]
    return style.figure(
        pairs,
        x=style.axis("GB/s per GPU, one direction", type="log", range=[-0.7, 3.4], tickvals=TICKS),
        y=style.axis(autorange="reversed"),
        alt=alt or "Bandwidth of one GPU in one direction, by machine and kind of link.",
        height=FRAME + 3 * BAR * len(rates),
        barmode="group",
    )


def bus_bandwidths(rows: Mapping[str, tuple[float, float, float]], *, alt: str = "") -> go.Figure:
    """Draw published bus bandwidths: label -> (measured, expected, rate of the wires), bytes/s."""
    names = list(rows)
    measured, expected, wires = ([each[i] / 1e9 for each in rows.values()] for i in range(3))
    traces = [
        _bar("rate of the slowest link", names, wires, marker("rgba(138, 143, 152, 0.25)", "")),
        _dots("expected", names, expected, style.COLOR["predicted"], style.SYMBOL["predicted"]),
        _dots("measured", names, measured, style.COLOR["measured"], style.SYMBOL["measured"]),
    ]
    return style.figure(
        traces,
        x=style.axis("bus bandwidth (GB/s)", rangemode="tozero"),
        y=style.axis(autorange="reversed", tickfont={"size": 10}),
        alt=alt or "Published bus bandwidths beside what the wiring lets one expect.",
        height=FRAME + BAR * len(rows),
    )


def crossings(carried: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
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
        alt=alt or "Bytes through the busiest link of each kind, by axis of the layout.",
        height=FRAME + 60 * max(len(carried), 2),
        barmode="stack",
    )


def steps(parts: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Draw the same step on several machines: machine -> "computing", "waiting" -> seconds."""
    return style.figure(
        bar_rows(parts, PARTS, "s"),
        x=style.axis("time of a step (s), replayed", rangemode="tozero"),
        y=style.axis(autorange="reversed"),
        alt=alt or "Time of the same training step on several machines: computing and waiting.",
        height=FRAME + 36 * len(parts),
        barmode="stack",
    )


def knee(
    rates: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    *,
    have: float | None = None,
    alt: str = "",
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
        y=style.axis("time of a step, 1 = no network limit", range=[0.9, min(4.0, 1.05 * highest)]),
        alt=alt or "Time of a training step against the bandwidth between nodes.",
        shapes=[] if have is None else [_upright(8 * have / 1e12)],
    )


def _upright(x: float) -> dict[str, Any]:
    look = {"color": style.COLOR["limit"], "width": 2, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": look}


def _bar(
    name: str, y: Sequence[str], x: Sequence[float | None], appearance: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(y),
        "x": list(x),
        "marker": dict(appearance),
    }


def _dots(
    name: str, y: Sequence[str], x: Sequence[float], color: str, symbol: str
) -> dict[str, Any]:
    look = {"color": color, "symbol": symbol, "size": 10, "line": {"width": 2, "color": color}}
    hover = f"%{{y}}, {name}: %{{x:.1f}} GB/s<extra></extra>"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "y": list(y),
        "x": list(x),
        "marker": look,
        "hovertemplate": hover,
    }
