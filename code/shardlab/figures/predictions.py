"""The figures of predictions: their errors, and what products reach."""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from . import style
from .lines import line, look

CORNER = 0.1  # powers of ten that keep the labels of two axes apart where they meet


def residuals(errors: Mapping[str, Sequence[float]], hindsight: Mapping[str, float]) -> go.Figure:
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
        alt="Prediction errors by table, beside the errors of one constant chosen in hindsight.",
        height=130 + 38 * len(tables),
    )


def products(
    sizes: Sequence[int], shares: Mapping[str, Sequence[float]], *, title: str
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
        alt="The share of its peak that a GPU reaches in products of matrices, against their size.",
    )
