"""The figure of the planner: the share of steps that is spent waiting."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from . import style, trace

THICK = 0.45  # of a bar; the rest is for its name
NARROW = 52  # letters on a line of a phone


def shares(cases: Mapping[str, Mapping[str, float]]) -> go.Figure:
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
        y=style.axis(
            range=[len(names) - 0.6, -0.85],
            visible=False,
            tickvals=[*range(len(names))],
            ticktext=names,
        ),
        alt="Share of a step spent waiting for messages, without and with overlap, by case.",
        height=110 + 66 * len(names),
        barmode="overlay",
        annotations=_above(names),
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
