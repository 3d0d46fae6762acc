"""The figures of predictions: rates and errors beside published steps, and what products reach."""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from . import style
from .lines import line, look

RATES = [10, 20, 50, 100, 200, 500, 1000]  # 10**12 FLOP/s
TIMES = [1, 1.5, 2, 3, 4, 6, 8, 10]
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
NEAR = 0.1  # of a prediction: the band that is drawn
CORNER = 0.1  # powers of ten that keep the labels of two axes apart where they meet


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
        x=style.axis("measured (10<sup>12</sup> FLOP/s per GPU)", type="log", tickvals=RATES),
        y=style.axis("predicted", type="log", tickvals=RATES),
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
        or "Prediction errors by table, beside the errors of one constant chosen in hindsight.",
        height=130 + 38 * len(tables),
    )


def rankings(
    sweeps: Mapping[str, Sequence[tuple[float, float]]],
    names: Mapping[str, Sequence[str]],
    *,
    alt: str = "",
) -> go.Figure:
    """Draw each sweep as a line: sweep -> how many times as long as its best, measured, predicted.

    names: sweep -> what was run. A line that rises all the way has the order that was measured.
    """
    every = [max(pair) for pairs in sweeps.values() for pair in pairs]
    ends = [1, 1.05 * max(every)]
    traces = [line(ends, ends, "equal", style.COLOR["ideal"], "dot")]
    for index, (sweep, pairs) in enumerate(sweeps.items()):
        ordered = sorted(zip(pairs, names[sweep], strict=True))
        color, dash = look(index)
        traces.append(
            go.Scatter(
                x=[measured for (measured, _), _ in ordered],
                y=[predicted for (_, predicted), _ in ordered],
                text=[name for _, name in ordered],
                name=sweep,
                mode="lines+markers",
                line={"color": color, "dash": dash, "width": 1.5},
                marker={"color": color, "symbol": SYMBOLS[index % len(SYMBOLS)], "size": 9},
                hovertemplate="%{text}<br>measured %{x:.2f}, predicted %{y:.2f}<extra></extra>",
            )
        )
    return style.figure(
        traces,
        x=style.axis("measured: times as long as the sweep's best", type="log", tickvals=TIMES),
        y=style.axis("predicted", type="log", tickvals=TIMES),
        alt=alt or "Layouts of each sweep in order of their measured time, against the predicted.",
        height=480,
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

    title: the name of the size, for the axis, which names the powers of two.
    """
    return style.figure(
        [
            line(sizes, [100 * share for share in each], name, *look(i))
            for i, (name, each) in enumerate(shares.items())
        ],
        x=style.axis(
            title,
            type="log",
            tickvals=[n for n in sizes if not n & (n - 1)],
            range=[log10(min(sizes)) - CORNER, log10(max(sizes))],
        ),
        y=style.axis("share of the peak (%)", rangemode="tozero"),
        alt=alt
        or "The share of its peak that a GPU reaches in products of matrices, against their size.",
    )
