"""Horizontal bars: a label for each row, and for each part of the rows a trace with its own colour and pattern."""

from collections.abc import Mapping
from typing import Any


def bar_rows(
    parts: Mapping[str, Mapping[str, float]],
    looks: Mapping[str, Mapping[str, Any]],
    unit: str,
    *,
    scale: float = 1.0,
    digits: str = ".3g",
    **options: Any,
) -> list[dict[str, Any]]:
    """One trace for each of `looks`: label -> part -> number, zero where a label has none.

    scale: of the numbers, so that they are in `unit`. digits: as the pointer shows them. options: any entry
    of plotly's bar. What stands above or beside each other is the layout's: barmode="stack" or "group".
    """
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": list(parts),
            "x": [scale * each.get(part, 0.0) for each in parts.values()],
            "marker": look,
            "hovertemplate": f"%{{y}}, {part}: %{{x:{digits}}} {unit}<extra></extra>",
            **options,
        }
        for part, look in looks.items()
    ]
