"""Timelines: when every rank computed and communicated, from a recorded or predicted trace."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.trace import Event

from . import style

# A kind of event has a colour, an operation a tint of it and, on paper, a pattern; one that has no
# place of its own here takes the next free one.
PLACES = {"forward": 0, "backward": 1, "update": 2, "all_reduce": 0, "waiting": 0}
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


def spans(
    events: Sequence[Event], *, unit: str = "ms", scale: float | None = None
) -> list[dict[str, Any]]:
    """Make a trace of bars for each operation, computing first, in order of first occurrence.

    scale: what a second is in `unit`, where UNITS has it not.
    """
    scale = scale or UNITS[unit]
    origin = min(event.start for event in events)
    first = sorted(events, key=lambda event: (event.kind == "communicate", event.start))
    ops = list(dict.fromkeys((event.kind, event.op) for event in first))
    return [
        _bars(
            [event for event in events if (event.kind, event.op) == op], scale, origin, unit, place
        )
        for op, place in zip(ops, _places(ops), strict=True)
    ]


def part(kind: str, place: int = 0) -> dict[str, Any]:
    """Make the look of the part of a kind of events that stands at a place among its parts."""
    shape = "." if kind == "idle" else SHAPES[place % len(SHAPES)]
    return marker(style.tint(style.COLOR[kind], place), shape)


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


def _places(ops: list[tuple[str, str]]) -> list[int]:
    places: list[int] = []
    for kind, op in ops:
        taken = {place for (other, _), place in zip(ops, places, strict=False) if other == kind}
        taken |= {PLACES[o] for k, o in ops if k == kind and o in PLACES}
        free = next(place for place in range(len(ops) + len(PLACES)) if place not in taken)
        places.append(PLACES.get(op, free))
    return places


def _bars(
    events: list[Event], scale: float, origin: float, unit: str, place: int
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
        "marker": part(first.kind, place),
        "customdata": [event.nbytes / 1e6 for event in events],
        "hovertemplate": f"{name}: %{{x:.3g}} {unit} from %{{base:.3g}} {unit}"
        + (", %{customdata:.3g} MB" if first.kind == "communicate" else "")
        + "<extra>%{y}</extra>",
    }
