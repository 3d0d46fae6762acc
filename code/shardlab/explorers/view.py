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
MAX_ROWS, THINNED = 200, 40  # rows of a table that is made from a figure, whole and thinned
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
        """{"figure": {"data", "layout"}, "sentence", "table", "caption"}, ready for JSON."""
        figure = plain_figure(self.figure)
        table, caption = (self.table, "") if self.table else points(figure)
        rows = [[cell(x) for x in row] for row in table]
        return {
            "figure": figure,
            "sentence": together(self.sentence),
            "table": rows,
            "caption": caption,
        }


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


def points(figure: dict[str, Any]) -> tuple[list[list[Any]], str]:
    """List the points of a plain figure, and say what was left out: nothing of MAX_ROWS or fewer.

    A row is series, where, value; of bars in time, start and end; of a heat map column, row, value;
    of a drawing on hidden axes the names in it. All bars are listed, unless they stand in time. Of
    more points than MAX_ROWS the table has the first and the last of each series, those with a
    name, and others at even distances. Traces without a hover text are decoration, and left out.
    A figure with a table of its own has that.
    """
    layout = figure["layout"]
    if own := (layout.get("meta") or {}).get("table"):
        return own, ""
    data = [trace for trace in figure["data"] if trace.get("hoverinfo") != "skip"]
    if layout.get("xaxis", {}).get("visible") is False:
        return [["drawn", "name"], *_names(data)], ""
    lying = bool(data) and all(map(_lies, data))
    in_time = lying and all("base" in trace for trace in data)
    rows: list[list[Any]] = []
    kept = set()
    for trace in data:
        found = trace_stretches(trace, layout) if in_time else trace_points(trace, layout)
        texts = trace.get("text") if trace.get("type", "scatter") == "scatter" else None
        names = texts if isinstance(texts, list) else []
        kept |= {len(rows) + at for at, name in enumerate(names) if name}
        kept |= {len(rows), len(rows) + len(found) - 1} if found else set()
        rows += [[trace.get("name", ""), *point] for point in found]
    head = _heads(layout, lying, in_time, data, _kind([str(row[1]) for row in rows]))
    all_bars = not in_time and all(trace.get("type") == "bar" for trace in data)
    if all_bars or len(rows) <= MAX_ROWS:
        return [head, *rows], ""
    every = math.ceil(len(rows) / max(1, THINNED - len(kept)))
    shown = sorted(kept | {*range(0, len(rows), every)})
    if len(shown) == len(rows):
        return [head, *rows], ""
    caption = (
        f"{len(shown)} of {len(rows):,} points: the first and the last of each series, those with"
        " a name, and others at even distances."
    )
    return [head, *(rows[at] for at in shown)], caption


def _heads(
    layout: dict[str, Any], lying: bool, in_time: bool, data: list[dict[str, Any]], kind: str
) -> list[str]:
    """Return what stands in each column of the points; kind: of names without a title."""
    titles = [(layout.get(axis, {}).get("title") or {}).get("text") for axis in ("xaxis", "yaxis")]
    x, y = (title and title.replace("<br>", ", ") for title in titles)
    if in_time:
        return ["series", y or kind, f"start: {x or 'time'}", f"end: {x or 'time'}"]
    if any(trace.get("z") for trace in data):
        return ["series", x or "column", y or "row", "value"]
    where, value = (y, x) if lying else (x, y)
    return ["series", where or kind, value or "value"]


def _kind(names: Sequence[str]) -> str:
    """Return the word with which all names begin, as "rank" of "rank 0" and "rank 1"."""
    words = {name.partition(" ")[0] for name in names}
    return words.pop() if len(words) == 1 and len({*names}) > 1 else "name"


def _lies(trace: dict[str, Any]) -> bool:
    """Whether a trace has its names on the y axis; one without points goes along."""
    named = any(isinstance(y, str) for y in trace.get("y") or []) and not trace.get("z")
    return trace.get("orientation") == "h" or named or not any(trace.get("x") or [])


def _names(data: list[dict[str, Any]]) -> list[list[Any]]:
    """Return what a drawing names, and each series of lines once."""
    rows = []
    for trace in data:
        texts = trace.get("text")
        names = texts if isinstance(texts, list) else [texts or ""]
        rows += [[trace.get("name", ""), name] for name in dict.fromkeys(names)]
    return rows


def trace_stretches(trace: dict[str, Any], layout: dict[str, Any]) -> list[tuple[Any, ...]]:
    """List (row, start, end) of each bar of a timeline."""
    rows = _labels(trace["y"], layout.get("yaxis", {}))
    bars = zip(rows, trace["base"], trace["x"], strict=True)
    return [(row, start, rounded(start + length)) for row, start, length in bars]


def trace_points(trace: dict[str, Any], layout: dict[str, Any]) -> list[tuple[Any, ...]]:
    """List (where, value) of each point of a trace, or (column, row, value) of a heat map."""
    xs = trace.get("x") or []
    ys = trace.get("y") or []
    rows = trace.get("z")
    if rows:
        return [
            (x, y, z) for y, row in zip(ys, rows, strict=True) for x, z in zip(xs, row, strict=True)
        ]
    wheres, values, axis = (ys, xs, "yaxis") if _lies(trace) else (xs, ys, "xaxis")
    if trace.get("type") == "bar":
        wheres = _labels(wheres, layout.get(axis, {}))
    pairs = zip(wheres, values, strict=True)
    return [(where, value) for where, value in pairs if value is not None]


def _labels(places: Sequence[Any], axis: dict[str, Any]) -> Sequence[Any]:
    """Return the label of the nearest tick for each place, and the places where none has a label.

    Bars that stand side by side lie beside their tick.
    """
    labels = dict(zip(axis.get("tickvals") or [], axis.get("ticktext") or [], strict=False))
    if not labels:
        return places
    return [labels[min(labels, key=lambda tick: abs(tick - place))] for place in places]
