"""The figures of the planner: the parts of steps, their waiting, and why plans fail."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from . import style, trace

PARTS = {  # of a step, as `Step.summary` has them
    "matrices": trace.marker(style.COLOR["compute"], ""),
    "attention": trace.marker(style.COLOR["compute"], "/"),
    "norms, embedding, head": trace.marker(style.COLOR["compute"], "x"),
    "recomputation": trace.marker(style.PURPLE, "\\"),
    "update": trace.marker(style.COLOR["optimizer"], ""),
    "tensor, context, experts": trace.marker(style.COLOR["communicate"], ""),
    "data parallel and ZeRO": trace.marker(style.COLOR["communicate"], "/"),
    "waiting for stages": trace.marker(style.COLOR["idle"], trace.PATTERNS["waiting"]),
}
BAR, FRAME = 64, 300  # pixels; on a phone the legend takes half of the frame
THICK = 0.45  # of a bar; the rest is for its name
NARROW = 52  # letters on a line of a phone


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
        y=style.axis(range=[len(names) - 0.6, -0.85], visible=False),
        alt="Share of a step spent waiting for messages, without and with overlap, by case.",
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
