"""The figures of compute: rooflines, shares of FLOPs and seconds, days of training, budgets."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style
from .lines import line, look, named, points
from .trace import marker

BOUND = {
    "arithmetic": marker(style.COLOR["compute"], ""),
    "memory": marker(style.COLOR["idle"], "."),
}
DURATIONS = {  # days -> what people call them
    1 / 1440: "1 minute",
    1 / 24: "1 hour",
    1: "1 day",
    30: "1 month",
    365: "1 year",
    3650: "10 years",
    36500: "100 years",
    365000: "1,000 years",
    3650000: "10,000 years",
}
RATES = {
    1e9: "1 G",
    1e10: "10 G",
    1e11: "100 G",
    1e12: "1 T",
    1e13: "10 T",
    1e14: "100 T",
    1e15: "1 P",
    1e16: "10 P",
}
ROW, BAR, FRAME, TALL = 20, 30, 110, 440  # pixels
CLEAR = 5  # pixels, where a label of each axis stands in the corner


def rooflines(
    intensity: Sequence[float],
    roofs: Mapping[str, Sequence[float]],
    work: Mapping[str, tuple[float, float]] | None = None,
    measured: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    *,
    span: tuple[float, float] | None = None,
    alt: str = "",
) -> go.Figure:
    """Draw FLOP/s against FLOP/byte, both logarithmic.

    span: the lowest and the highest FLOP/s drawn. roofs: chip -> FLOP/s at each of `intensity`.
    work: operation -> (FLOP/byte, FLOP/s), drawn with its name.
    measured: name -> (FLOP/byte, FLOP/s) of many runs.
    """
    traces = [
        line(intensity, rates, name, *look(i)) for i, (name, rates) in enumerate(roofs.items())
    ]
    for name, (xs, ys) in (measured or {}).items():
        color = look(list(roofs).index(name))[0] if name in roofs else style.COLOR["measured"]
        traces.append(points(xs, ys, f"{name}, measured", color, "measured"))
    if work:
        traces.append(named(work, "operation"))
    return style.figure(
        traces,
        x=style.axis(
            "arithmetic intensity (FLOP/byte)",
            type="log",
            exponentformat="none",
            dtick=1,
            ticklabelstandoff=CLEAR,
        ),
        y=_logarithmic("rate (FLOP/s)", RATES, span),
        alt=alt
        or "FLOP/s against arithmetic intensity: the roofline of each chip, and operations on it.",
        height=TALL,
    )


def layer(parts: Mapping[str, tuple[float, str]], *, alt: str = "") -> go.Figure:
    """Draw a bar for each operation of a layer.

    parts: operation -> (seconds, "arithmetic" or "memory", whichever it waits for).
    """
    bars = [
        go.Bar(
            orientation="h",
            name=f"waits for {bound}",
            y=[name for name, (_, what) in parts.items() if what == bound],
            x=[1e6 * seconds for seconds, what in parts.values() if what == bound],
            marker=marker,
            hovertemplate="%{y}: %{x:.3g} µs<extra></extra>",
        )
        for bound, marker in BOUND.items()
    ]
    return style.figure(
        bars,
        x="shortest time (µs)",
        y=style.axis(categoryorder="array", categoryarray=list(parts)[::-1]),
        alt=alt
        or "The time of each operation of a layer, and whether it waits for arithmetic or memory.",
        height=FRAME + BAR * len(parts),
        barmode="overlay",
    )


def utilisations(runs: Mapping[str, tuple[float, float | None, float | None]]) -> go.Figure:
    """Draw published runs: name -> (MFU, HFU or None, what the authors print or None).

    All numbers are shares of the peak.
    """
    names = list(runs)
    model = [100 * mfu for mfu, _, _ in runs.values()]
    again = [100 * (hfu - mfu) if hfu else 0.0 for mfu, hfu, _ in runs.values()]
    claims = [(name, 100 * claim) for name, (_, _, claim) in runs.items() if claim]
    bars = [
        go.Bar(orientation="h", name="model FLOPs", y=names, x=model, marker=BOUND["arithmetic"]),
        go.Bar(
            orientation="h",
            name="recomputed",
            y=names,
            x=again,
            marker=marker(style.COLOR["idle"], "/"),
        ),
    ]
    printed = points(
        [x for _, x in claims], [name for name, _ in claims], "printed", style.RED, "measured"
    )
    return style.figure(
        [*bars, printed],
        x=style.axis("share of the peak (%)", range=[0, 62]),
        y=style.axis(range=[len(runs) - 0.5, -0.5], tickfont={"size": 11}),
        alt="Utilisation of published runs: model FLOPs, recomputed FLOPs, and what is printed.",
        height=FRAME + ROW * len(runs),
        barmode="stack",
    )


def days(
    chips: Sequence[int],
    runs: Mapping[str, Sequence[float]],
    chosen: Mapping[str, tuple[float, float]] | None = None,
    *,
    span: tuple[float, float] | None = None,
    alt: str = "",
) -> go.Figure:
    """Draw days of a training against the number of chips, both logarithmic.

    runs: label -> days for each of `chips`.

    chosen: name -> (chips, days), named in the legend. span: the shortest and the longest time
    drawn, in days.
    """
    traces = [line(chips, values, name, *look(i)) for i, (name, values) in enumerate(runs.items())]
    look_of_choice = {"color": style.RED, "symbol": "circle", "size": 9}
    for name, (x, y) in (
        chosen or {}
    ).items():  # named in the legend: at the edge a name would cover labels
        traces.append(go.Scatter(x=[x], y=[y], name=name, mode="markers", marker=look_of_choice))
    return style.figure(
        traces,
        x=style.axis("chips", type="log", exponentformat="none", dtick=1),
        y=_logarithmic("duration", DURATIONS, span),
        alt=alt or "Days of a training against the number of chips.",
    )


def splits(
    budgets: Sequence[float],
    laws: Mapping[str, Sequence[float]],
    trained: Mapping[str, tuple[float, float]] | None = None,
    *,
    of: str = "parameters",
) -> go.Figure:
    """Draw how each law splits a budget, both axes logarithmic.

    laws: law -> parameters (or tokens) for each of `budgets`, in FLOPs.

    trained: model -> (FLOPs, parameters or tokens), drawn with its name. of: what the laws give,
    for the axis.
    """
    traces = [
        line(budgets, values, name, *look(i)) for i, (name, values) in enumerate(laws.items())
    ]
    if trained:
        traces.append(named(trained, "model"))
    return style.figure(
        traces,
        x=style.axis("budget (FLOPs)", type="log", exponentformat="power", dtick=2),
        y=style.axis(of, type="log", exponentformat="power", dtick=1),
        alt=f"The {of} that each scaling law gives for a budget of FLOPs, and of trained models.",
        height=TALL,
    )


def _logarithmic(
    title: str, ticks: Mapping[float, str], span: tuple[float, float] | None
) -> dict[str, Any]:
    """Make a logarithmic axis with `ticks`: value -> text."""
    limits = {} if span is None else {"range": [math.log10(end) for end in span]}
    return style.axis(
        title, type="log", tickvals=list(ticks), ticktext=list(ticks.values()), **limits
    )
