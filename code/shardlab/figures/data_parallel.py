"""The figures of data parallelism: how much of a step is waiting, what the busiest link carries, what fits."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.trace import Event

from . import style, trace

MEMORY = {
    "parameters": trace.marker(style.COLOR["parameters"], ""),
    "gradients": trace.marker(style.COLOR["gradients"], "/"),
    "optimizer": trace.marker(style.COLOR["optimizer"], "x"),
    "activations": trace.marker(style.COLOR["activations"], "."),
}
SHARES = {
    "without overlap": trace.marker(style.COLOR["idle"], "."),
    "with overlap": trace.marker(style.COLOR["communicate"], ""),
}
LINES = (style.BLUE, style.GREEN, style.PURPLE, style.OLIVE)
DASHES = ("solid", "dash", "dashdot", "longdash")
BAR, FRAME = 44, 110  # pixels


def memory(ranks: Mapping[str, Mapping[str, float]], *, capacity: float | None = None, alt: str = "") -> go.Figure:
    """One bar for each rank or layout: label -> part -> bytes. capacity: bytes of the chip, drawn as a line."""
    widest = max([sum(parts.values()) for parts in ranks.values()] + [capacity or 0.0]) / 1e9
    return style.figure(
        [*memory_bars(ranks), *([] if capacity is None else [limit_in_legend()])],
        x=style.axis("memory per rank (GB)", range=[0, 1.03 * widest]),
        y=style.axis(autorange="reversed"),
        alt=alt or "Memory per rank, by part.",
        height=FRAME + BAR * max(len(ranks), 2),
        barmode="stack",
        shapes=[] if capacity is None else [limit(capacity / 1e9)],
    )


def shares(machines: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Two bars for each machine: label -> {"without overlap", "with overlap"} -> share of the step spent waiting."""
    bars = [
        go.Bar(
            orientation="h",
            name=name,
            y=list(machines),
            x=[100 * machine[name] for machine in machines.values()],
            text=[f"{100 * machine[name]:.0f} %" for machine in machines.values()],
            textposition="outside",
            cliponaxis=False,
            marker=look,
            hovertemplate="%{y}, " + name + ": %{x:.1f} %<extra></extra>",
        )
        for name, look in SHARES.items()
    ]
    return style.figure(
        bars,
        x=style.axis("share of the step spent waiting (%)", range=[0, 108]),
        y=style.axis(autorange="reversed"),
        alt=alt or "Share of a step spent waiting for the all-reduce, without and with overlap, by machine.",
        height=FRAME + BAR * len(machines),
        barmode="group",
    )


def busiest_link(
    ranks: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    counted: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None,
    *,
    alt: str = "",
) -> go.Figure:
    """Bytes through the busiest link against the number of ranks.

    predicted: strategy -> bytes for each of `ranks`. counted: strategy -> (numbers of ranks, bytes).
    """
    traces = [
        _line(ranks, [x / 1e6 for x in nbytes], name, *_look(i))
        for i, (name, nbytes) in enumerate(predicted.items())
    ]
    for i, name in enumerate(predicted):
        if name in (counted or {}):
            counts, nbytes = (counted or {})[name]
            traces.append(_points(counts, [x / 1e6 for x in nbytes], f"{name}, counted", _look(i)[0], "counted"))
    return style.figure(
        traces,
        x="ranks",
        y=style.axis("bytes through the busiest link (MB)", rangemode="tozero"),
        alt=alt or "Bytes through the busiest link against the number of ranks, for each strategy.",
    )


def speedup(
    ranks: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None,
    *,
    alt: str = "",
) -> go.Figure:
    """Speed-up against the number of ranks, beside the ideal one.

    predicted: name -> speed-up for each of `ranks`. measured: name -> (numbers of ranks, speed-ups).
    """
    traces = [_line(ranks, list(ranks), "ideal", style.COLOR["ideal"], "dot")]
    for i, (name, gains) in enumerate(predicted.items()):
        traces.append(_line(ranks, gains, name, *_look(i)))
    for name, (counts, gains) in (measured or {}).items():
        traces.append(_points(counts, gains, name, style.COLOR["measured"], "measured"))
    return style.figure(
        traces,
        x=style.axis("ranks", type="log", tickvals=list(ranks)),
        y=style.axis("speed-up", type="log", tickvals=list(ranks)),
        alt=alt or "Speed-up against the number of ranks: ideal, predicted, measured.",
    )


def drift(steps: Sequence[int], curves: Mapping[str, Sequence[float]], *, alt: str = "") -> go.Figure:
    """How far replicas or runs are apart after each step: name -> distance for each of `steps`."""
    return _curves(
        curves,
        steps,
        y=style.axis("distance between the parameters", type="log", exponentformat="power"),
        alt=alt or "Distance between the parameters against the training step.",
    )


def losses(steps: Sequence[int], curves: Mapping[str, Sequence[float]], *, alt: str = "") -> go.Figure:
    """Training loss: name -> loss for each of `steps`."""
    return _curves(curves, steps, y=style.axis("loss (nats per token)"), alt=alt or "Loss against the training step.")


def timeline_and_memory(
    events: Sequence[Event], held: Mapping[str, float], capacity: float, *, alt: str = ""
) -> go.Figure:
    """One rank's step as a timeline, and below it the bytes it holds, by part, beside its chip's capacity."""
    rows = [f"rank {events[0].rank} {does}" for does in ("computes", "talks")]  # both, also for one rank alone
    return style.figure(
        [*trace.spans(events), *memory_below(held)],
        x="time (ms)",
        y=style.axis(
            domain=[0.5, 1],
            categoryorder="array",
            categoryarray=rows,
            range=[1.5, -0.5],
            tickvals=rows,
            ticktext=["computes", "talks"],
        ),
        alt=alt,
        height=440,
        barmode="stack",
        **layout_below(held, capacity),
    )


def memory_below(held: Mapping[str, float]) -> list[Any]:
    """Bytes by part as one bar on second axes, with a legend of its own; `layout_below` places them."""
    place = {"xaxis": "x2", "yaxis": "y2", "legend": "legend2"}
    return [{**bar, **place} for bar in memory_bars({"memory": held})] + [limit_in_legend().update(legend="legend2")]


def layout_below(held: Mapping[str, float], capacity: float) -> dict[str, Any]:
    """The layout of a figure whose lower part is `memory_below`."""
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    widest = 1.03 * max(capacity, sum(held.values())) / 1e9
    return {
        "xaxis2": style.axis("memory of the GPU (GB)", anchor="y2", range=[0, widest]),
        "yaxis2": style.axis(domain=[0, 0.14], showticklabels=False),
        "shapes": [limit(capacity / 1e9, xref="x2", yref="y2 domain")],
        "legend": {**legend, "y": 1.02},
        "legend2": {**legend, "y": 0.15},
    }


def memory_bars(ranks: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The stacked parts of what ranks hold: label -> part -> bytes."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": list(ranks),
            "x": [parts.get(part, 0.0) / 1e9 for parts in ranks.values()],
            "marker": look,
            "hovertemplate": f"%{{y}}, {part}: %{{x:.3g}} GB<extra></extra>",
        }
        for part, look in MEMORY.items()
        if any(part in parts for parts in ranks.values())
    ]


def limit(x: float, *, xref: str = "x", yref: str = "paper") -> dict[str, Any]:
    """A vertical line at x over the whole height."""
    line = {"color": style.COLOR["limit"], "width": 3, "dash": "dash"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "xref": xref, "yref": yref, "line": line}


def limit_in_legend() -> go.Scatter:
    """A shape has no line in the legend: an empty trace stands for it."""
    return _line([None], [None], "capacity", style.COLOR["limit"], "dash")


def _look(index: int) -> tuple[str, str]:
    return LINES[index % len(LINES)], DASHES[index % len(DASHES)]


def _line(x: Sequence[float | None], y: Sequence[float | None], name: str, color: str, dash: str) -> go.Scatter:
    look = {"color": color, "dash": dash, "width": 2.5}
    return go.Scatter(x=list(x), y=list(y), name=name, mode="lines", line=look)


def _points(x: Sequence[float], y: Sequence[float], name: str, color: str, kind: str) -> go.Scatter:
    look = {"color": color, "symbol": style.SYMBOL[kind], "size": 10}
    return go.Scatter(x=list(x), y=list(y), name=name, mode="markers", marker=look)


def _curves(curves: Mapping[str, Sequence[float]], steps: Sequence[int], *, y: dict[str, Any], alt: str) -> go.Figure:
    traces = [
        _line(steps, values, name, *_look(i))
        for i, (name, values) in enumerate(curves.items())
    ]
    return style.figure(traces, x="training step", y=y, alt=alt)
