"""The figures of memory: bytes by part, beside a chip's capacity."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style, trace
from .bars import bar_rows
from .lines import line

PARTS = {  # colour and pattern of each part of what a rank holds, in the order of stacking
    "parameters": trace.marker(style.COLOR["parameters"], ""),
    "gradients": trace.marker(style.COLOR["gradients"], "/"),
    "optimizer": trace.marker(style.COLOR["optimizer"], "x"),
    "activations": trace.marker(style.COLOR["activations"], "."),
    "logits": trace.marker(style.COLOR["logits"], "|"),
    "buffers": trace.marker(style.COLOR["buffers"], "\\"),
    "overhead": trace.marker(style.COLOR["overhead"], "-"),
}
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
SMALLEST = 0.5  # of the unit that is chosen
BAR, FRAME = 44, 110  # pixels


def by_part(
    ranks: Mapping[str, Mapping[str, float]], *, capacity: float | None = None, alt: str = ""
) -> go.Figure:
    """Draw one bar for each rank or layout: label -> part -> bytes.

    capacity: bytes of the chip, drawn as a line.
    """
    widest = max([sum(parts.values()) for parts in ranks.values()] + [capacity or 0.0])
    unit = _unit(widest)
    return style.figure(
        [*stacked(ranks, unit), *([] if capacity is None else [limit_in_legend()])],
        x=style.axis(f"memory per rank ({unit})", range=[0, 1.03 * widest / UNITS[unit]]),
        y=style.axis(autorange="reversed"),
        alt=alt or "Memory per rank, by part.",
        height=FRAME + BAR * max(len(ranks), 2),
        barmode="stack",
        shapes=[] if capacity is None else [limit(capacity / UNITS[unit])],
    )


def above_time(
    held: Mapping[str, Mapping[str, float]],
    times: Mapping[str, Mapping[str, float]],
    looks: Mapping[str, Mapping[str, Any]],
    capacity: float,
    *,
    title: str,
    alt: str,
    unit: str = "ms",
    strength: Sequence[float] | float = 1.0,
    height: int = 490,
) -> go.Figure:
    """Draw a rank's memory beside its chip's capacity, above bars of time.

    held: label -> part -> bytes. times: label -> part of `looks` -> seconds; title: of their axis,
    in `unit`; "%": times are shares. looks: part -> plotly's marker. strength: opacity of each row.
    """
    place = {"xaxis": "x2", "yaxis": "y2", "legend": "legend2"}
    below = bar_rows(times, looks, unit, scale={**trace.UNITS, "%": 100}[unit], **place)
    bars = [
        {**bar, "marker": {**bar["marker"], "opacity": strength}}
        for bar in (*stacked(held), *below)
    ]
    widest = 1.03 * max([1.3 * capacity, *(sum(parts.values()) for parts in held.values())]) / 1e9
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    return style.figure(
        [*bars, limit_in_legend()],
        x=style.axis("memory of a rank (GB)", range=[0, widest], anchor="y"),
        y=style.axis(autorange="reversed", domain=[0.62, 1], dtick=1),
        xaxis2=style.axis(title, anchor="y2"),
        yaxis2=style.axis(autorange="reversed", domain=[0, 0.29], anchor="x2", dtick=1),
        shapes=[limit(capacity / 1e9, yref="y domain")],
        legend={**legend, "y": 1.02},
        legend2={**legend, "y": 0.31},
        alt=alt,
        height=height,
        barmode="stack",
    )


def stages(
    held: Sequence[Mapping[str, float]], *, capacity: float | None = None, alt: str = ""
) -> go.Figure:
    """Draw one column for each pipeline stage: part -> bytes on one of its ranks."""
    highest = max([sum(parts.values()) for parts in held] + [capacity or 0.0])
    unit = _unit(highest)
    columns = [
        {
            **bar,
            "orientation": "v",
            "x": bar["y"],
            "y": bar["x"],
            "hovertemplate": _hover(bar["name"], "x", "y", unit),
        }
        for bar in stacked({str(stage): parts for stage, parts in enumerate(held)}, unit)
    ]
    return style.figure(
        [*columns, *([] if capacity is None else [limit_in_legend()])],
        x=style.axis("pipeline stage", type="category"),
        y=style.axis(f"memory per rank ({unit})", range=[0, 1.05 * highest / UNITS[unit]]),
        alt=alt or "Memory of a rank of each pipeline stage, by part.",
        barmode="stack",
        bargap=0.2,
        shapes=[] if capacity is None else [across(capacity / UNITS[unit])],
    )


def below(held: Mapping[str, float]) -> list[Any]:
    """Draw bytes by part as one bar on second axes, which `layout_below` places."""
    place = {"xaxis": "x2", "yaxis": "y2", "legend": "legend2"}
    return [{**bar, **place} for bar in stacked({"memory": held})] + [
        limit_in_legend().update(legend="legend2")
    ]


def layout_below(held: Mapping[str, float], capacity: float) -> dict[str, Any]:
    """Return the layout of a figure whose lower part is `below`."""
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    widest = 1.03 * max(capacity, sum(held.values())) / 1e9
    return {
        "xaxis2": style.axis("memory of the GPU (GB)", anchor="y2", range=[0, widest]),
        "yaxis2": style.axis(domain=[0, 0.14], showticklabels=False),
        "shapes": [limit(capacity / 1e9, xref="x2", yref="y2 domain")],
        "legend": {**legend, "y": 1.02},
        "legend2": {**legend, "y": 0.15},
    }


def stacked(ranks: Mapping[str, Mapping[str, float]], unit: str = "GB") -> list[dict[str, Any]]:
    """Draw what ranks hold as stacked bars: label -> part -> bytes."""
    looks = {
        part: marker
        for part, marker in PARTS.items()
        if any(part in parts for parts in ranks.values())
    }
    return bar_rows(ranks, looks, unit, scale=1 / UNITS[unit])


def limit(x: float, *, xref: str = "x", yref: str = "paper") -> dict[str, Any]:
    """Draw a vertical line at `x` over the whole height."""
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "xref": xref,
        "yref": yref,
        "line": _LIMIT,
    }


def limit_in_legend() -> go.Scatter:
    """Make an empty trace for the legend, in which a shape has no line."""
    return line([None], [None], "capacity", style.COLOR["limit"], "dash")


_LIMIT = {"color": style.COLOR["limit"], "width": 3, "dash": "dash"}


def across(y: float, *, yref: str = "y") -> dict[str, Any]:
    """Draw a horizontal line at `y` over the whole width."""
    return {
        "type": "line",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "xref": "paper",
        "yref": yref,
        "line": _LIMIT,
    }


def _hover(part: str, label: str, value: str, unit: str) -> str:
    return f"%{{{label}}}, {part}: %{{{value}:.3g}} {unit}<extra></extra>"


def _unit(largest: float) -> str:
    """Return the largest unit in which `largest` is at least SMALLEST."""
    return next((unit for unit, size in UNITS.items() if largest >= SMALLEST * size), "B")
