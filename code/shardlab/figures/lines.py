"""Lines and points: series, each with a colour and a dash, or a symbol, of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style

LINES = (style.BLUE, style.GREEN, style.PURPLE, style.OLIVE, style.ORANGE, style.TEAL, style.GREY)
DASHES = ("solid", "dash", "dashdot", "longdash", "dot", "longdashdot")


def look(index: int) -> tuple[str, str]:
    """Return the colour and the dash of line `index` of a figure."""
    return LINES[index % len(LINES)], DASHES[index % len(DASHES)]


def line(
    x: Sequence[float | str | None], y: Sequence[float | None], name: str, color: str, dash: str
) -> go.Scatter:
    """Draw a line through the points (x, y); a name is a place on an axis of categories."""
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        mode="lines",
        line={"color": color, "dash": dash, "width": 2.5},
    )


def points(x: Sequence[Any], y: Sequence[Any], name: str, color: str, kind: str) -> go.Scatter:
    """Draw points without a line, at numbers or at names on an axis of categories.

    kind: "predicted", "counted" or "measured".
    """
    marker = {"color": color, "symbol": style.SYMBOL[kind], "size": 10}
    return go.Scatter(x=list(x), y=list(y), name=name, mode="markers", marker=marker)


def named(places: Mapping[str, tuple[float, float]], kind: str) -> go.Scatter:
    """Draw points with their names off rising lines: at the top left, the lowest at the bottom right."""
    falling = sorted(places, key=lambda name: -places[name][1])
    position = {
        name: "bottom right" if 4 * i > 3 * (len(falling) - 1) else "top left"
        for i, name in enumerate(falling)
    }
    return go.Scatter(
        x=[x for x, _ in places.values()],
        y=[y for _, y in places.values()],
        name=kind,
        mode="markers+text",
        text=list(places),
        textposition=[position[name] for name in places],
        textfont={"size": 11},
        marker={"color": style.RED, "symbol": "circle", "size": 9},
        hovertemplate="%{text}: %{x:.3g}, %{y:.3g}<extra></extra>",
    )
