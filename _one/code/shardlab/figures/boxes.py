"""Boxes: rectangles in the coordinates of a figure, many of them in one trace."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from . import style


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle, by its left edge, its width, and the heights of its edges."""

    left: float
    width: float
    top: float
    bottom: float

    @property
    def height(self) -> float:
        """How far its top is above its bottom."""
        return self.top - self.bottom


def corners(boxes: Sequence[Box]) -> tuple[list[float | None], list[float | None]]:
    """Return x and y of a line around each of `boxes`, with a gap after each."""
    x: list[float | None] = []
    y: list[float | None] = []
    for box in boxes:
        right = box.left + box.width
        x += [box.left, right, right, box.left, box.left, None]
        y += [box.top, box.top, box.bottom, box.bottom, box.top, None]
    return x, y


def outline(boxes: Sequence[Box], *, width: float, hoverinfo: str = "skip") -> go.Scatter:
    """Draw grey lines around `boxes`, `width` pixels wide and without an entry in the legend."""
    x, y = corners(boxes)
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": style.GREY, "width": width},
        hoverinfo=hoverinfo,
        name="",
        showlegend=False,
    )
