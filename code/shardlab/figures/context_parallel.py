"""The figures of context parallelism: a mask as tiles, each rank's work, memory beside time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.sharding.sequences import Tile

from . import style, trace
from .boxes import Box, outline

TIMES = {  # parts of a layer's attention and of its messages
    "attention": trace.part("compute"),
    "messages, hidden": trace.part("communicate", 1),
    "messages, exposed": trace.part("communicate"),
}
WAITING = trace.part("idle")
FADED, CLEAR = 0.3, 0.08  # opacity of tiles of earlier turns, and of later ones
Turns = Sequence[Sequence[Tile]]  # the tiles of each turn


def ring(
    work: Sequence[Turns], length: int, turn: int | None = None, *, alt: str = ""
) -> go.Figure:
    """Draw a causal mask, and below it the pairs of each rank and how long it waits.

    Each tile has the look of the rank that computes it. work: the tiles of each rank, turn by turn.
    turn: drawn strong, earlier ones fainter, later ones faintest; None: all as strong.
    """
    pairs = [[sum(tile.seen for tile in tiles) for tiles in turns] for turns in work]
    names = [f"rank {rank}" for rank in range(len(pairs))]
    busiest = max(map(sum, pairs))
    bars = []
    for name, color, row in zip(names, style.RANKS, pairs, strict=False):
        for number, count in enumerate(row):
            strong = {**trace.marker(color, ""), "opacity": _opacity(number, turn)}
            bars.append(_bar(name, f"turn {number}", count, strong))
    idle = [busiest - sum(row) for row in pairs]
    bars += [_bar(name, "waits", count, WAITING) for name, count in zip(names, idle, strict=True)]
    return style.figure(
        [*_tiles(work, length, turn), *bars],
        x=style.axis("keys, by position", range=[0, length], showgrid=False, zeroline=False),
        y=style.axis(
            "queries", range=[length, 0], domain=[0.46, 1], showgrid=False, zeroline=False
        ),
        xaxis2=style.axis("pairs of a query and a key", range=[0, 1.02 * busiest], anchor="y2"),
        yaxis2=style.axis(autorange="reversed", domain=[0, 0.32], anchor="x2", dtick=1),
        alt=alt or "The tiles that each rank computes in a turn of the ring, and its work so far.",
        height=640,
        barmode="stack",
    )


def _bar(row: str, part: str, count: int, look: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": part,
        "x": [count],
        "y": [row],
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": look,
        "showlegend": False,
        "hovertemplate": f"{row}, {part}: {count:,} pairs<extra></extra>",
    }


def _opacity(number: int, turn: int | None) -> float:
    """Return how strongly a turn is drawn beside the present one."""
    if turn is None or number == turn:
        return 1.0
    return FADED if number < turn else CLEAR


def _tiles(work: Sequence[Turns], length: int, turn: int | None) -> list[go.Scatter]:
    """Draw each rank's tiles: a trace for the legend, and one for every turn that has some."""
    found = []
    for rank, turns in enumerate(work):
        shown = True
        for number, tiles in enumerate(turns):
            if tiles:
                area = _area(tiles, style.RANKS[rank], _opacity(number, turn))
                area.update(name=f"rank {rank}", legendgroup=f"rank {rank}", showlegend=shown)
                found.append(area)
                shown = False
    diagonal = {"color": style.GREY, "width": 2, "dash": "dot"}
    ends = [0, length]
    line = go.Scatter(x=ends, y=ends, mode="lines", line=diagonal, name="the causal mask")
    return [*found, line.update(hoverinfo="skip")]


def _area(tiles: Iterable[Tile], color: str, opacity: float) -> go.Scatter:
    boxes = [
        Box(
            left=tile.keys.start,
            width=len(tile.keys),
            top=tile.queries.start,
            bottom=tile.queries.stop,
        )
        for tile in tiles
    ]
    area = outline(boxes, width=1, hoverinfo="name")
    return area.update(
        fill="toself",
        fillcolor=color,
        opacity=opacity,
        line={"color": color, "width": 1},
        hoveron="fills",
    )
