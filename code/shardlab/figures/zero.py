"""The figure of ZeRO: memory of a rank at each stage, and below it the time of a step."""

from collections.abc import Mapping

import plotly.graph_objects as go

from . import memory, trace

TIMES = {  # parts of a step
    "computing": trace.part("compute"),
    "update": trace.part("compute", 2),
    "waiting": trace.part("idle"),
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

    held: stage -> part -> bytes. times: stage -> part -> seconds. chosen: one of the stages, drawn
    stronger.
    """
    return memory.above_time(
        held,
        times,
        TIMES,
        capacity,
        title="time of a step (s)",
        alt=alt or "Memory of a rank at each stage, and where the time of a step goes.",
        unit="s",
        strength=[1.0 if stage == chosen else FADED for stage in held],
        height=400,
    )
