"""Horizontal bars: a row for each label, and a trace for each part of the rows."""

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
    """Make a trace for each part in `looks`; `parts` is label -> part -> number, 0 if missing.

    scale: of the numbers, so that they are in `unit`. digits: as the pointer shows them. options:
    any entry of plotly's bar. Whether bars stack or stand beside each other is the layout's:
    barmode="stack" or "group".
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
