"""The figure of ZeRO: memory of a rank at each stage, and below it the time of a step."""

from collections.abc import Mapping

import plotly.graph_objects as go

from . import memory, style, trace
from .bars import bar_rows

TIMES = {  # parts of a step; marks tell them from parts of memory, in one legend
    "computing": trace.marker(style.COLOR["compute"], "/"),
    "update": trace.marker(style.COLOR["compute"], "x"),
    "waiting": trace.marker(style.COLOR["idle"], "."),
}
FADED = 0.35  # opacity of what is not chosen


def memory_and_time(
    held: Mapping[str, Mapping[str, float]],
    times: Mapping[str, Mapping[str, float]],
    chosen: str,
    capacity: float,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the bytes of a rank at each stage, beside its chip's capacity; below, a step's time.

    One legend serves both, so that a phone has room for both.

    held: stage -> part -> bytes. times: stage -> part -> seconds. chosen: one of the stages, drawn
    stronger.
    """
    strength = [1.0 if stage == chosen else FADED for stage in held]
    widest = 1.03 * max([capacity, *(sum(parts.values()) for parts in held.values())]) / 1e9
    longest = 1.03 * max(sum(parts.values()) for parts in times.values())
    above = [
        {**bar, "marker": {**bar["marker"], "opacity": strength}} for bar in memory.stacked(held)
    ]
    looks = {part: {**look, "opacity": strength} for part, look in TIMES.items()}
    below = bar_rows(times, looks, "s", xaxis="x2", yaxis="y2")
    return style.figure(
        [*above, memory.limit_in_legend(), *below],
        x=style.axis("memory of a rank (GB)", range=[0, widest], anchor="y"),
        y=style.axis(autorange="reversed", domain=[0.64, 1]),
        xaxis2=style.axis("seconds of a step", range=[0, longest], anchor="y2"),
        yaxis2=style.axis(autorange="reversed", domain=[0, 0.36], anchor="x2"),
        shapes=[memory.limit(capacity / 1e9, yref="y domain")],
        alt=alt or "Memory of a rank at each stage, and where the time of a step goes.",
        height=400,
        barmode="stack",
    )
