"""The wiring of a node: GPUs in a row, NVSwitch below; PCIe switches, cards, processors above."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from . import style

Wire = tuple[
    str, str, str, str, float
]  # from, to, name of the link, its kind, bytes/s in one direction
Point = tuple[float, float]
LOOK = {
    "NVLink": (style.GREEN, "solid"),
    "Infinity Fabric": (style.GREEN, "solid"),
    "ICI": (style.GREEN, "solid"),
    "PCIe": (style.BLUE, "dash"),
    "host": (style.GREY, "dot"),
    "network": (style.ORANGE, "dashdot"),
}
ROWS = {
    "NVSwitch": 0.0,
    "switch": 0.0,
    "GPU": 1.0,
    "PCIe switch": 2.0,
    "NIC": 3.0,
    "CPU": 4.0,
    "network": 5.0,
}
PARTS = {  # how a part is drawn, and what it is called in the legend
    "GPU": ("square", "GPU"),
    "PCIe switch": ("circle", "PCIe switch"),
    "NIC": ("diamond", "network card"),
    "CPU": ("hexagon2", "processor"),
}
PATHS = (style.PURPLE, style.RED)
FRAME, ROW = 100, 60  # pixels: of the legends, and from one row to the next


def topology(
    wires: Sequence[Wire],
    *,
    paths: Mapping[str, Sequence[str]] | None = None,
    gpus: int | None = None,
) -> go.Figure:
    """Draw the parts of a node and the wires between them; a wider line is a faster one.

    paths: name -> the parts that a message passes, drawn on top. gpus: how many GPUs to draw, with
    what they need.
    """
    wires = [wire for wire in wires if gpus is None or not _beyond(wire, gpus)]
    places = _places(wires)
    lines = [*_wires(wires, places)]
    traces = [*lines, *_paths(paths or {}, places), *_parts(places)]
    hidden = {"visible": False, "fixedrange": True}
    widest, highest = max(x for x, _ in places.values()), max(y for _, y in places.values())
    lowest = min(y for line in lines for y in line["y"] if y is not None) - 0.5
    rows = [[a, b, link, rate / 1e9] for a, b, link, _, rate in wires]
    return style.figure(
        traces,
        x={**hidden, "range": [-0.6, widest + 0.6]},
        y={**hidden, "range": [lowest, highest + 0.6]},
        alt=f"Wiring of {sum(part.startswith('GPU ') for part in places)} GPUs.",
        height=FRAME + round(ROW * (highest + 0.6 - lowest)),
        table=[["from", "to", "link", "GB/s in one direction"], *rows],
        hovermode="closest",
        legend2={"orientation": "h", "x": 0, "y": -0.02, "yanchor": "top"},
    )


def row_of(part: str) -> float:
    """Return how high `part` stands."""
    return max(height for kind, height in ROWS.items() if part.startswith(kind))


def _beyond(wire: Wire, gpus: int) -> bool:
    """Whether `wire` leads to a GPU that is not drawn, or to a part that only such a GPU needs."""
    numbers = [
        int(part.split()[-1]) for part in wire[:2] if part.startswith(("GPU", "NIC", "PCIe switch"))
    ]
    return any(number >= gpus for number in numbers)


def _places(wires: Sequence[Wire]) -> dict[str, Point]:
    """Place each part: GPUs by number, everything else above what it is wired to."""
    parts = list(dict.fromkeys(part for wire in wires for part in wire[:2]))
    gpus = sorted(
        (part for part in parts if part.startswith("GPU ")), key=lambda part: int(part.split()[-1])
    )
    x = {part: float(index) for index, part in enumerate(gpus)}
    for kind in ("PCIe switch", "CPU", "NIC"):
        for part in (part for part in parts if part.startswith(kind)):
            near = [
                x[other]
                for other in _neighbours(part, wires)
                if other in x and not other.startswith(kind)
            ]
            x[part] = sum(near) / len(near)
    return {
        part: (x.get(part, (len(gpus) - 1) / 2) + _aside(part, x), row_of(part)) for part in parts
    }


def _aside(part: str, x: Mapping[str, float]) -> float:
    """Return how far to shift `part`, so that parts in one place stand side by side."""
    rivals = [other for other in x if row_of(other) == row_of(part) and x[other] == x.get(part)]
    return 0.5 * (rivals.index(part) - (len(rivals) - 1) / 2) if part in rivals else 0.0


def _neighbours(part: str, wires: Sequence[Wire]) -> list[str]:
    return [b if a == part else a for a, b, *_ in wires if part in (a, b)]


def _wires(wires: Sequence[Wire], places: Mapping[str, Point]) -> Iterator[dict[str, Any]]:
    """Make a trace for each kind and rate of link, with breaks between the wires."""
    for link, kind, rate in dict.fromkeys(wire[2:] for wire in wires):
        curves = [
            _curve(places[a], places[b])
            for a, b, *facts in wires
            if tuple(facts) == (link, kind, rate)
        ]
        color, dash = LOOK[kind]
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": f"{link}, {rate / 1e9:.3g} GB/s",
            "x": [x for curve in curves for x in (*(x for x, _ in curve), None)],
            "y": [y for curve in curves for y in (*(y for _, y in curve), None)],
            "line": {"color": color, "dash": dash, "width": max(1.0, 1.6 * math.log10(rate / 1e9))},
            "hoverinfo": "name",
        }


def _paths(
    paths: Mapping[str, Sequence[str]], places: Mapping[str, Point]
) -> Iterator[dict[str, Any]]:
    for (name, parts), color in zip(paths.items(), PATHS, strict=False):
        points = [point for a, b in pairwise(parts) for point in _curve(places[a], places[b])]
        yield {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [x for x, _ in points],
            "y": [y for _, y in points],
            "line": {"color": color, "width": 5},
            "marker": {"symbol": "arrow", "size": 11, "angleref": "previous", "color": color},
            "opacity": 0.75,
            "hoverinfo": "name",
        }


def _parts(places: Mapping[str, Point]) -> Iterator[dict[str, Any]]:
    """Make a trace for each kind of part with numbers, and one for each single part."""
    for kind, (symbol, name) in PARTS.items():
        parts = [part for part in places if part.startswith(f"{kind} ")]
        if parts:
            yield _markers(parts, places, symbol, name, [part.split()[-1] for part in parts])
    for part in places:
        if not part[-1].isdigit():
            alone = _markers([part], places, "circle-open", "", [part])
            yield {**alone, "showlegend": False, "textposition": _beside(part)}


def _markers(
    parts: Sequence[str], places: Mapping[str, Point], symbol: str, name: str, text: Sequence[str]
) -> dict[str, Any]:
    look = {
        "size": 17,
        "color": style.GREY,
        "symbol": symbol,
        "line": {"width": 1, "color": style.TEXT},
    }
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "legend": "legend2",
        "x": [places[part][0] for part in parts],
        "y": [places[part][1] for part in parts],
        "text": list(text),
        "textfont": {"size": 11, **({"color": "black"} if text[0].isdigit() else {})},
        "hovertext": list(parts),
        "hoverinfo": "text",
        "marker": look,
    }


def _beside(part: str) -> str:
    return "top center" if row_of(part) > 1 else "bottom center"


def _curve(a: Point, b: Point) -> list[Point]:
    """Draw a straight line; between two GPUs of the row, a bow below it."""
    if a[1] != b[1] or a[1] != ROWS["GPU"]:
        return [a, b]
    depth = 0.25 + 0.16 * abs(a[0] - b[0])
    steps = [step / 12 for step in range(13)]
    return [(a[0] + t * (b[0] - a[0]), a[1] - 4 * depth * t * (1 - t)) for t in steps]
