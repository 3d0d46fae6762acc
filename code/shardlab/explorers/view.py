"""A view: a figure, the sentence that says what to see in it, and its numbers as a table."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardlab.figures.table import cell

from .words import together

DIGITS = 5  # significant digits kept of every number: more than a screen can show
MAX_ROWS = 40  # rows of a table that is made from a figure
HEIGHT = 450  # pixels: plotly's own default, of a figure that has no height


@dataclass(frozen=True)
class View:
    """What a reader sees of one state.

    figure: a plotly figure or its dict. sentence: HTML, one sentence with the result in it. table:
    rows of cells, the first row is the header; without one, the points of the figure are listed.
    """

    figure: Any
    sentence: str = ""
    table: Sequence[Sequence[Any]] = ()

    def plain(self) -> dict[str, Any]:
        """{"figure": {"data", "layout"}, "sentence", "table"}, ready for JSON."""
        figure = plain_figure(self.figure)
        rows = [[cell(x) for x in row] for row in self.table or points(figure)]
        return {"figure": figure, "sentence": together(self.sentence), "table": rows}


def plain_figure(figure: Any) -> dict[str, Any]:
    """Convert a plotly figure to JSON-ready data and layout, always with a height.

    The template is left out: the page's theme decides the look.
    """
    fields = figure if isinstance(figure, dict) else figure.to_dict()
    layout = {key: value for key, value in fields.get("layout", {}).items() if key != "template"}
    layout.setdefault("height", HEIGHT)
    return {"data": plain(fields.get("data", [])), "layout": plain(layout)}


def plain(x: Any) -> Any:
    """Convert `x` to JSON types: arrays become lists, floats are `rounded`."""
    if isinstance(x, dict):
        return (
            plain(unpacked(x))
            if "bdata" in x
            else {str(key): plain(value) for key, value in x.items()}
        )
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    if isinstance(x, np.ndarray | np.generic):
        return plain(x.tolist())
    return rounded(x) if isinstance(x, float) else x


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """Decode plotly's packing of an array, {"dtype": "f8", "bdata": base64, "shape": "2, 3"}."""
    array = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])
    shape = packed.get("shape")
    return array.reshape([int(n) for n in str(shape).split(",")]) if shape else array


def rounded(x: float) -> float | int | None:
    """Round `x` to DIGITS significant digits: to an int if that is exact, to None if not finite."""
    if not math.isfinite(x):
        return None
    short = float(f"{x:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def points(figure: dict[str, Any]) -> list[list[Any]]:
    """List the points of a plain figure: series, where, value; of bars in time, start and end.

    All bars that begin at zero are listed; curves and timelines are thinned to at most MAX_ROWS
    rows, and their first head says so. Traces without a hover text are decoration, and left out.
    """
    layout = figure["layout"]
    rows = []
    data = [trace for trace in figure["data"] if trace.get("hoverinfo") != "skip"]
    lying = bool(data) and all(trace.get("orientation") == "h" for trace in data)
    in_time = lying and all("base" in trace for trace in data)
    where, value = _titles(layout, lying)
    for trace in data:
        found = trace_stretches(trace) if in_time else trace_points(trace)
        rows += [[trace.get("name", ""), *point] for point in found]
    all_bars = all(trace.get("type") == "bar" and "base" not in trace for trace in data)
    every = 1 if all_bars else math.ceil(len(rows) / MAX_ROWS)
    series = "series" if every <= 1 else f"series (one point of {every})"
    values = [f"start: {value}", f"end: {value}"] if in_time else [value]
    return [[series, where, *values], *rows[::every]]


def _titles(layout: dict[str, Any], lying: bool) -> tuple[str, str]:
    """Return the titles of where points lie and of what they are."""
    titles = [(layout.get(axis, {}).get("title") or {}).get("text") for axis in ("xaxis", "yaxis")]
    where, value = reversed(titles) if lying else titles
    return where or "place", value or "value"


def trace_stretches(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """List (row, start, end) of each bar of a timeline."""
    bars = zip(trace["y"], trace["base"], trace["x"], strict=True)
    return [(row, start, rounded(start + length)) for row, start, length in bars]


def trace_points(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """List (where, value) of each point of a trace, or (column, row, value) of a heat map."""
    xs = trace.get("x") or []
    ys = trace.get("y") or []
    rows = trace.get("z")
    if rows:
        return [
            (x, y, z) for y, row in zip(ys, rows, strict=True) for x, z in zip(xs, row, strict=True)
        ]
    return list(
        zip(ys, xs, strict=True) if trace.get("orientation") == "h" else zip(xs, ys, strict=True)
    )
