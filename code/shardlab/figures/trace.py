"""Timelines: when every rank computed and communicated, from a recorded or predicted trace."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.trace import Event

from . import style

# A kind of event has a colour, an operation a pattern; one that has none of its own here takes the
# next free shape.
PATTERNS = {"forward": "", "backward": "/", "update": "x", "all_reduce": "", "waiting": "."}
SHAPES = ("", "/", "x", "|", "-", "+", "\\")  # without dots, which mean waiting
UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}
ROW_HEIGHT, FRAME = 34, 130  # pixels


def timeline(events: Sequence[Event], *, unit: str = "ms") -> go.Figure:
    """Draw two rows for each rank, what it computes (or waits for) and what it communicates.

    Errors: ValueError for no events or an unknown unit.
    """
    if not events:
        raise ValueError(
            "a timeline needs events; record some with ledger.Ledger, or predict a step"
        )
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(UNITS)}")
    ranks = sorted({event.rank for event in events})
    rows = [
        row(event)
        for event in sorted(events, key=lambda event: (event.rank, event.kind == "communicate"))
    ]
    order = list(dict.fromkeys(rows))
    return style.figure(
        spans(events, unit=unit),
        x=f"time ({unit})",
        y=style.axis(categoryorder="array", categoryarray=order[::-1], tickfont={"size": 12}),
        alt=f"Timeline of {len(ranks)} ranks: when each computed and communicated.",
        height=FRAME + ROW_HEIGHT * len(order),
        barmode="overlay",
        bargap=0.25,
    )


def row(event: Event) -> str:
    """Return the name of the row on which `event` is drawn."""
    return f"rank {event.rank} {'communicates' if event.kind == 'communicate' else 'computes'}"


def spans(events: Sequence[Event], *, unit: str = "ms") -> list[dict[str, Any]]:
    """Make a trace of bars for each operation, computing first, in order of first occurrence."""
    scale = UNITS[unit]
    origin = min(event.start for event in events)
    first = sorted(events, key=lambda event: (event.kind == "communicate", event.start))
    ops = list(dict.fromkeys((event.kind, event.op) for event in first))
    return [
        _bars(
            [event for event in events if (event.kind, event.op) == op], scale, origin, unit, shape
        )
        for op, shape in zip(ops, _shapes(ops), strict=True)
    ]


def marker(color: str, shape: str) -> dict[str, Any]:
    """Make the look of a bar: a colour, and light marks in a pattern of plotly's ("": none)."""
    marks = {
        "shape": shape,
        "fillmode": "overlay",
        "fgcolor": "rgba(255, 255, 255, 0.75)",
        "solidity": 0.3,
        "size": 7,
    }
    return {"color": color, "pattern": marks, "line": {"width": 1, "color": style.GRID}}


def legible(look: dict[str, Any]) -> dict[str, Any]:
    """Return a look for areas with words in `style.ink`: its marks move away from the ink."""
    black = "rgba(0, 0, 0, 0.3)"
    marks = black if style.ink(look["color"]) == "white" else look["pattern"]["fgcolor"]
    return {**look, "pattern": {**look["pattern"], "fgcolor": marks}}


def _shapes(ops: list[tuple[str, str]]) -> list[str]:
    shapes: list[str] = []
    for kind, op in ops:
        taken = {shape for (other, _), shape in zip(ops, shapes, strict=False) if other == kind}
        free = [
            shape
            for shape in SHAPES
            if shape not in taken | {PATTERNS.get(o) for k, o in ops if k == kind}
        ]
        shapes.append(PATTERNS.get(op, (free or SHAPES)[0]))
    return shapes


def _bars(
    events: list[Event], scale: float, origin: float, unit: str, shape: str
) -> dict[str, Any]:
    first = events[0]
    name = first.op.replace("_", "-")
    return {  # explorers draw thousands; plotly's own objects are slow
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [row(event) for event in events],
        "base": [(event.start - origin) * scale for event in events],
        "x": [event.seconds * scale for event in events],
        "marker": marker(style.COLOR[first.kind], shape),
        "customdata": [event.nbytes / 1e6 for event in events],
        "hovertemplate": f"{name}: %{{x:.3g}} {unit} from %{{base:.3g}} {unit}"
        + (", %{customdata:.3g} MB" if first.kind == "communicate" else "")
        + "<extra>%{y}</extra>",
    }
