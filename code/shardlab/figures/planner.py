"""The figures of the planner: parts of steps, failures of plans, predictions and their errors."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from . import style, trace
from .lines import line, look

PARTS = {  # of a step, as `Step.summary` has them
    "matrices": trace.marker(style.COLOR["compute"], ""),
    "attention": trace.marker(style.COLOR["compute"], "/"),
    "norms, embedding, head": trace.marker(style.COLOR["compute"], "x"),
    "recomputation": trace.marker(style.PURPLE, "\\"),
    "update": trace.marker(style.COLOR["optimizer"], ""),
    "tensor and context parallel": trace.marker(style.COLOR["communicate"], ""),
    "data parallel and ZeRO": trace.marker(style.COLOR["communicate"], "/"),
    "waiting for stages": trace.marker(style.COLOR["idle"], trace.PATTERNS["waiting"]),
}
SYMBOLS = (
    "circle",
    "diamond",
    "square",
    "triangle-up",
    "cross",
    "x",
    "star",
    "triangle-down",
    "hexagon",
)
BAR, FRAME = 64, 300  # pixels; on a phone the legend takes half of the frame
THICK = 0.45  # of a bar; the rest is for its name
NARROW = 52  # letters on a line of a phone
NEAR = 0.1  # of a prediction: the band that is drawn


def breakdown(plans: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Draw a bar for each plan below its name: name -> part of a step (see PARTS) -> seconds."""
    names, rows = list(plans), list(range(len(plans)))
    bars: list[Any] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": rows,
            "x": [plans[name][part] for name in names],
            "marker": mark,
            "width": THICK,
            "customdata": names,
            "hovertemplate": f"%{{customdata}}<br>{part}: %{{x:.3g}} s<extra></extra>",
        }
        for part, mark in PARTS.items()
        if any(plans[name][part] > 0 for name in names)
    ]
    return style.figure(
        bars,
        x=style.axis("seconds of a step", rangemode="tozero"),
        y=style.axis(range=[len(names) - 0.6, -0.85], visible=False),
        alt=alt or "What the steps of plans go into, part by part.",
        height=FRAME + BAR * len(names),
        barmode="stack",
        annotations=_above(names),
    )


def shares(cases: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Draw the share of a step spent waiting: name -> "without overlap" or "with ..." -> share."""
    names = list(cases)
    looks = {"without overlap": style.COLOR["idle"], "with overlap": style.COLOR["communicate"]}
    bars = [
        go.Bar(
            orientation="h",
            name=way,
            y=[row - THICK / 4 + index * THICK / 2 for row in range(len(names))],
            x=[100 * case[way] for case in cases.values()],
            width=THICK / 2,
            customdata=names,
            text=[f"{100 * case[way]:.0f} %" for case in cases.values()],
            textposition="outside",
            cliponaxis=False,
            marker=trace.marker(color, "." if index == 0 else ""),
            hovertemplate="%{customdata}, " + way + ": %{x:.1f} %<extra></extra>",
        )
        for index, (way, color) in enumerate(looks.items())
    ]
    return style.figure(
        bars,
        x=style.axis("share of the step spent waiting (%)", range=[0, 108]),
        y=style.axis(range=[len(names) - 0.6, -0.85], visible=False),
        alt=alt or "Share of a step spent waiting for messages, without and with overlap, by case.",
        height=110 + 66 * len(names),
        barmode="overlay",
        annotations=_above(names),
    )


def reasons(counts: Mapping[str, int], *, alt: str = "") -> go.Figure:
    """Draw how many plans fit, and how many fail for each reason: words -> count, fits first."""
    words, numbers = list(counts), list(counts.values())
    colors = [style.GREEN, *[style.COLOR["limit"]] * (len(words) - 1)]
    bar = go.Bar(
        orientation="h",
        y=list(range(len(words))),
        x=[max(number, 0.55) for number in numbers],  # the axis has no zero
        width=THICK,
        customdata=words,
        text=[f"{number:,}" for number in numbers],
        textposition="outside",
        cliponaxis=False,
        marker={"color": colors, "pattern": {"shape": ["", *["/"] * (len(words) - 1)]}},
        hovertemplate="%{customdata}: %{x:,}<extra></extra>",
    )
    return style.figure(
        [bar],
        x=style.axis(
            "plans", type="log", dtick=1, range=[-0.3, max(1.0, len(str(max(numbers))) + 0.5)]
        ),
        y=style.axis(range=[len(words) - 0.6, -0.85], visible=False),
        alt=alt or "How many plans fit, and how many fail for each reason.",
        height=90 + 44 * len(words),
        showlegend=False,
        annotations=_above(words),
    )


def predicted_and_published(
    rows: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[str]]], *, alt: str = ""
) -> go.Figure:
    """Draw predicted against measured FLOP/s per GPU: table -> (measured, predicted, names)."""
    every = [rate for measured, predicted, _ in rows.values() for rate in (*measured, *predicted)]
    ends = [0.9 * min(every), 1.1 * max(every)]
    traces = [
        line(
            [x / 1e12 for x in ends],
            [x / 1e12 for x in ends],
            "equal",
            style.COLOR["ideal"],
            "solid",
        )
    ]
    for share in (1 - NEAR, 1 + NEAR):
        edge = line(
            [x / 1e12 for x in ends],
            [share * x / 1e12 for x in ends],
            "10 % off",
            style.COLOR["ideal"],
            "dot",
        )
        traces.append(edge.update(showlegend=share > 1))
    for index, (table, (measured, predicted, names)) in enumerate(rows.items()):
        traces.append(
            go.Scatter(
                x=[rate / 1e12 for rate in measured],
                y=[rate / 1e12 for rate in predicted],
                text=list(names),
                name=table,
                mode="markers",
                marker={
                    "color": look(index)[0],
                    "symbol": SYMBOLS[index % len(SYMBOLS)],
                    "size": 9,
                },
                hovertemplate="%{text}<br>measured %{x:.0f}, predicted %{y:.0f}<extra></extra>",
            )
        )
    return style.figure(
        traces,
        x=style.axis("measured (10<sup>12</sup> FLOP/s per GPU)", type="log"),
        y=style.axis("predicted", type="log"),
        alt=alt
        or "Predicted FLOP/s per GPU against published ones, on the line where both are equal.",
        height=520,
    )


def residuals(
    errors: Mapping[str, Sequence[float]], hindsight: Mapping[str, float], *, alt: str = ""
) -> go.Figure:
    """Draw the errors of predictions: table -> errors, as shares.

    hindsight: table -> mean error that the best constant, chosen in hindsight, leaves.
    """
    tables = list(errors)
    points = go.Scatter(
        x=[100 * error for each in errors.values() for error in each],
        y=[table for table, each in errors.items() for _ in each],
        name="one row",
        mode="markers",
        marker={"color": style.COLOR["predicted"], "symbol": "circle-open", "size": 9},
        hovertemplate="%{x:+.1f} %<extra>%{y}</extra>",
    )
    means = [100 * sum(map(abs, each)) / len(each) for each in errors.values()]
    marks = [
        ("mean, without signs", means, style.COLOR["predicted"], "diamond"),
        (
            "a constant in hindsight",
            [100 * hindsight[table] for table in tables],
            style.COLOR["limit"],
            "line-ns-open",
        ),
    ]
    averages = [
        go.Scatter(
            x=values,
            y=tables,
            name=name,
            mode="markers",
            marker={
                "color": color,
                "symbol": symbol,
                "size": 12,
                "line": {"width": 3 if "line" in symbol else 0},
            },
            hovertemplate=name + ": %{x:.1f} %<extra></extra>",
        )
        for name, values, color, symbol in marks
    ]
    return style.figure(
        [points, *averages],
        x=style.axis("time too long (%)", zeroline=True, zerolinewidth=2, ticksuffix=""),
        y=style.axis(autorange="reversed", tickfont={"size": 11}),
        alt=alt
        or "Errors of the predictions by table, beside those of a constant chosen in hindsight.",
        height=130 + 38 * len(tables),
    )


def residual_bars(errors: Mapping[str, float], *, alt: str = "") -> go.Figure:
    """Draw the errors of one table: name of a row -> share."""
    bar = go.Bar(
        orientation="h",
        y=list(errors),
        x=[100 * error for error in errors.values()],
        text=[f"{100 * error:+.1f} %" for error in errors.values()],
        textposition="outside",
        cliponaxis=False,
        marker={"color": style.COLOR["predicted"]},
        hovertemplate="%{y}: %{x:+.1f} %<extra></extra>",
    )
    most = max([1.0, *(abs(100 * error) for error in errors.values())])
    return style.figure(
        [bar],
        x=style.axis("time too long (%)", range=[-1.9 * most, 1.9 * most]),
        y=style.axis(autorange="reversed", tickfont={"size": 11}),
        alt=alt or "How much longer each prediction is than the published step.",
        height=100 + 28 * len(errors),
        showlegend=False,
    )


def products(
    sizes: Sequence[int], shares: Mapping[str, Sequence[float]], *, title: str, alt: str = ""
) -> go.Figure:
    """Draw the share of its peak that a GPU reaches: name -> share for each of `sizes`.

    title: the name of the size, for the axis.
    """
    return style.figure(
        [
            line(sizes, [100 * share for share in each], name, *look(i))
            for i, (name, each) in enumerate(shares.items())
        ],
        x=style.axis(title, type="log"),
        y=style.axis("share of the peak (%)", rangemode="tozero"),
        alt=alt
        or "The share of its peak that a GPU reaches in products of matrices, against their size.",
    )


def _above(names: Sequence[str]) -> list[dict[str, Any]]:
    """Write the name of each bar above it, on several lines where a phone is too narrow."""
    look = {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "align": "left",
    }
    return [
        {
            **look,
            "y": row - THICK / 2,
            "text": "<br>".join(wrap(name, NARROW)),
            "font": {"size": 11},
        }
        for row, name in enumerate(names)
    ]
