"""Axes that stand still: one range of numbers for all states, so that only what is shown moves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

AIR = 0.05  # share of a range that is left free at an end without a number of its own, as in plotly
Span = tuple[float, float]
Pile = tuple[str, str, Any, bool]  # axis along which its bars grow, the other, place, upwards


class Axes:
    """The ranges that hold all figures seen so far, by the name of the axis in a layout.

    Of a logarithmic axis they are powers of ten. Axes of names and invisible ones are left alone.
    most: the highest number to show on an axis; bars that are longer are cut there, and the longest
    says its length.
    """

    def __init__(self, most: Mapping[str, float]) -> None:
        self.most = most
        self.spans: dict[str, Span] = {}

    def see(self, figure: dict[str, Any]) -> None:
        """Widen the ranges for a plain figure."""
        for axis, (low, high) in spans(figure):
            before = self.spans.get(axis, (low, high))
            self.spans[axis] = min(low, before[0]), max(high, before[1])

    def hold(self, figure: dict[str, Any]) -> None:
        """Write the ranges into a plain figure that was seen."""
        layout = figure["layout"]
        for axis, _ in spans(figure):
            low, high = self.spans[axis]
            if axis in self.most:
                high = self.most[axis]
                layout["annotations"] = [*layout.get("annotations", ()), *cuts(figure, axis, high)]
            old = layout.get(axis, {})
            first, last = old.get("range", (0, 1))
            down = old.get("autorange") == "reversed" or first > last
            kept = {
                key: value for key, value in old.items() if key not in ("autorange", "rangemode")
            }
            layout[axis] = {**kept, "range": [high, low] if down else [low, high]}


def spans(figure: dict[str, Any]) -> Iterator[tuple[str, Span]]:
    """List the numeric axes of a plain figure, each with the range that holds all on it."""
    layout = figure["layout"]
    found, piles = numbers(figure)
    bars = {axis for axis, *_ in piles}
    for axis, values in found.items():
        about = layout.get(axis, {})
        named = about.get("type") == "category" or about.get("visible") is False
        if named or any(isinstance(x, str) for x in values):
            continue
        given = about.get("range")
        if given:
            yield axis, (min(given), max(given))
            continue
        log = about.get("type") == "log"
        seen = [
            math.log10(x) if log else float(x)
            for x in values
            if x is not None and (x > 0 or not log)
        ]
        if about.get("rangemode") == "tozero" and not log:
            seen.append(0.0)
        if not seen:
            continue
        low, high = min(seen), max(seen)
        air = AIR * (high - low or abs(high) or 1)  # a single number has some, too
        at_zero = axis in bars or about.get("rangemode") == "tozero"
        yield (
            axis,
            (
                low if at_zero and low == 0 else low - air,
                high if at_zero and high == 0 else high + air,
            ),
        )


def cuts(figure: dict[str, Any], axis: str, most: float) -> Iterator[dict[str, Any]]:
    """List an annotation with the length of the longest bar that ends beyond `most`, if any does."""
    piles = numbers(figure)[1]
    longest = max((length for (along, *_), length in piles.items() if along == axis), default=0.0)
    for (along, across, place, _), length in piles.items():
        if along == axis and length == longest > most:
            at = {axis[0]: most, across[0]: place}
            refs = {f"{one[0]}ref": one.replace("axis", "") for one in (along, across)}
            side = {"xanchor": "right"} if axis[0] == "x" else {"yanchor": "top"}
            look = {"showarrow": False, "bgcolor": "#fff", "font": {"color": "#000"}}
            yield {**at, **refs, **side, **look, "text": f"to {length:,.1f}".removesuffix(".0")}


def numbers(figure: dict[str, Any]) -> tuple[dict[str, list[Any]], dict[Pile, float]]:
    """Return all that lies on each axis, in its own units, and the lengths of piles of bars."""
    layout = figure["layout"]
    found: dict[str, list[Any]] = defaultdict(list)
    piles: dict[Pile, float] = defaultdict(float)
    for trace in figure["data"]:
        axes = {letter: name(trace.get(f"{letter}axis", letter)) for letter in "xy"}
        if trace.get("type") != "bar":
            for letter, axis in axes.items():
                found[axis] += trace.get(letter) or []
            continue
        along, across = "xy" if trace.get("orientation") == "h" else "yx"
        places = trace.get(across) or []
        lengths = trace.get(along) or []
        bases = each(trace.get("base"), len(lengths))
        for place, length, base in zip(places, lengths, bases, strict=True):
            if length is None:
                continue
            pile = (axes[along], axes[across], place, length > 0)
            stacked = base is None and layout.get("barmode") in ("stack", "relative")
            piles[pile] = (piles[pile] if stacked else base or 0.0) + length
            found[axes[along]] += [0.0 if base is None else base, piles[pile]]
        found[axes[across]] += [x for place in places for x in beside(place)]
    for shape in layout.get("shapes", ()):
        for letter in "xy":
            axis = name(shape.get(f"{letter}ref", letter))
            if axis in found:
                found[axis] += [shape[f"{letter}{end}"] for end in (0, 1)]
    return found, piles


def beside(place: Any) -> Iterable[Any]:
    """Return the ends of the room that a bar takes at a numeric place."""
    return (place,) if isinstance(place, str) or place is None else (place - 0.5, place + 0.5)


def each(value: Any, count: int) -> list[Any]:
    """Return a value for each of `count` bars."""
    return value if isinstance(value, list) else [value] * count


def name(reference: str) -> str:
    """Return the name in a layout of an axis that a trace calls x, x2, y ...; of others, no axis."""
    return f"{reference[0]}axis{reference[1:]}"
