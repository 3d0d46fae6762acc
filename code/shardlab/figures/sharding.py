"""The figures of sharding: what ranks hold of a product, and a step as a list."""

import html
from collections.abc import Mapping, Sequence
from itertools import product as combinations
from typing import Any

import plotly.graph_objects as go
from IPython.display import HTML

from shardlab.sharding.types.methods.method import Method
from shardlab.sharding.types.states import Dim, Mesh, Sharding, Sizes
from shardlab.sharding.types.tracer import Call

from . import style, trace
from .boxes import Box, corners, outline
from .table import table

COLORS = {"x": style.PURPLE, "w": style.BLUE, "y": style.GREEN}
GAP = 0.2  # between two matrices, as a share of one
PANEL = 2.7  # width and height of a rank's part


def held(operands: Mapping[str, Sharding], mesh: Mesh, *, alt: str = "") -> go.Figure:
    """Draw for each rank of a mesh of two axes what it holds of x, w and y = x @ w.

    A filled part is what the rank holds; a pattern marks numbers that are terms of a sum. The last
    dim of a tensor goes across, the others go down. operands: "x", "w" and, where there is a
    product, "y" -> its type.
    """
    (down, rows), (across, columns) = mesh.items()
    whole: list[Box] = []
    parts: dict[str, list[Box]] = {name: [] for name in operands}
    names: list[tuple[float, float, str]] = []
    for place in combinations(range(rows), range(columns)):
        at = dict(zip((down, across), place, strict=True))
        left, top = PANEL * at[across], -PANEL * at[down]
        names.append((left + 0.5, top - 0.6, f"rank {place[0] * columns + place[1]}"))
        corner = {"w": (left + 1 + GAP, top), "x": (left, top - 1 - GAP)}
        corner["y"] = (left + 1 + GAP, top - 1 - GAP)
        for name, (x, y) in corner.items():
            whole.append(Box(left=x, width=1, top=y, bottom=y - 1))
            if name in operands:
                parts[name].append(_part(operands[name].dims, x, y, at, mesh))
    legend = [_area(name, operands[name], boxes) for name, boxes in parts.items()]
    return style.figure(
        [outline(whole, width=1), *legend, _texts(names)],
        x={"visible": False, "constrain": "domain", "range": [-0.1, PANEL * columns - 0.3]},
        y={"visible": False, "scaleanchor": "x", "range": [0.4 - PANEL * rows, 0.1]},
        alt=alt or "What each rank holds of two matrices and their product.",
        height=330,
    )


def step(method: Method, mesh: Mesh, sizes: Sizes, itemsize: int = 2) -> HTML:
    """List the lines of a method, the type after each, and what a rank sends, by direction.

    Forward is read down and backward up; the lines after the loss is closed follow backward.
    itemsize: bytes of a number. Errors: as `Method.trace`.
    """
    tracer = method.trace(mesh, sizes, itemsize)
    rows: list[Sequence[Any]] = [("line and type of its result", "forward", "backward")]
    for number, line in enumerate(tracer.lines, start=1):
        text = html.escape(line.where.partition(": ")[2])
        code = f'<code style="white-space: normal">{text}</code><br>{number}. {line.result}'
        backward = _sent(line.backward) if number <= tracer.closed else "after backward"
        rows.append((HTML(code), _sent(line.forward), backward))
    axes = ", ".join(f"{axis}={ranks}" for axis, ranks in mesh.items())
    return table(rows, f"{method.name} on {axes}: bytes that each rank sends")


def _part(dims: Sequence[Dim], x: float, y: float, at: Mapping[str, int], mesh: Mesh) -> Box:
    """Return what the rank at these coordinates holds of the unit square below and right of x, y.

    Rows are sorted so that each rank's part is one block, also where S is cut and B is not.
    """
    top, height = _span(dims[:-1], at, mesh)
    left, width = _span(dims[-1:], at, mesh)
    return Box(left=x + left, width=width, top=y - top, bottom=y - top - height)


def _span(dims: Sequence[Dim], at: Mapping[str, int], mesh: Mesh) -> tuple[float, float]:
    start, size = 0.0, 1.0
    for dim in dims:
        for axis in dim.axes:
            size /= mesh[axis]
            start += at[axis] * size
    return start, size


def _area(name: str, sharding: Sharding, boxes: Sequence[Box]) -> dict[str, Any]:
    x, y = corners(boxes)
    look = trace.marker(COLORS[name], "/" if sharding.partial else "")
    return {  # an explorer draws hundreds; plotly's own objects are slow
        "type": "scatter",
        "x": x,
        "y": y,
        "name": f"{name} {sharding}",
        "mode": "lines",
        "fill": "toself",
        "fillcolor": look["color"],
        "fillpattern": look["pattern"],
        "line": {"color": look["color"], "width": 0.5},
        "hoveron": "fills",
        "hoverinfo": "name",
    }


def _texts(places: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    x, y, text = zip(*places, strict=True)
    words = {"type": "scatter", "mode": "text", "textfont": {"size": 11}}
    return {**words, "x": x, "y": y, "text": text, "hoverinfo": "skip", "showlegend": False}


def _sent(calls: Sequence[Call]) -> str:
    return ", ".join(f"{verb} @{axis} {sent:,.0f} B" for verb, axis, sent in calls)
