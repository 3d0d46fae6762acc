"""The figure of the title page: the share of time that GPUs wait, and the memory of one."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import memory as memory_figures
from . import style, trace

LOOK = {
    "computing": trace.marker(style.COLOR["compute"], trace.PATTERNS["forward"]),
    "waiting": trace.marker(style.COLOR["idle"], trace.PATTERNS["waiting"]),
}
FADED = 0.4  # the numbers of GPUs that are not chosen


def time_and_memory(
    gpus: Sequence[int],
    computing: Sequence[float],
    chosen: int,
    memory: Mapping[str, float],
    capacity: float,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the share of a step spent computing, by number of GPUs; below, bytes and capacity.

    computing: share of the step, 0 to 1, for each of `gpus`. chosen: one of `gpus`, drawn stronger.
    """
    strength = [1.0 if count == chosen else FADED for count in gpus]
    return style.figure(
        [
            _shares("computing", gpus, [100 * share for share in computing], strength),
            _shares("waiting", gpus, [100 * (1 - share) for share in computing], strength),
            *memory_figures.below(memory),
        ],
        x=style.axis("GPUs", type="category"),
        y=style.axis("share of a step (%)", domain=[0.5, 1], range=[0, 100]),
        alt=alt,
        height=460,
        barmode="stack",
        **memory_figures.layout_below(memory, capacity),
    )


def _shares(
    name: str, gpus: Sequence[int], percent: list[float], strength: list[float]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": [str(count) for count in gpus],
        "y": percent,
        "marker": {**LOOK[name], "opacity": strength},
        "hovertemplate": f"%{{x}} GPUs, {name}: %{{y:.1f}} %<extra></extra>",
    }
