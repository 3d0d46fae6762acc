"""The figures of ZeRO: what each rank holds and sends at each stage, and memory beside time."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import lines, memory, style, trace
from .bars import bar_rows
from .boxes import Box, outline

STATES = ("parameters", "gradients", "optimizer")
TIMES = {  # parts of a step
    "computing": trace.marker(style.COLOR["compute"], ""),
    "update": trace.marker(style.COLOR["compute"], "x"),
    "waiting": trace.marker(style.COLOR["idle"], "."),
}
SENT = {  # the purposes of bytes
    "average gradients": trace.marker(style.COLOR["gradients"], ""),
    "cut gradients": trace.marker(style.COLOR["gradients"], "/"),
    "gather after the step": trace.marker(style.COLOR["parameters"], ""),
    "gather in forward": trace.marker(style.COLOR["parameters"], "/"),
    "gather in backward": trace.marker(style.COLOR["parameters"], "\\"),
}
FADED = 0.35  # opacity of what is not chosen
FRAME = 180  # pixels: a legend of six, one below the other on a phone
GAP = 0.12  # between ranks, as a share of a column


def redundancy(
    held: Mapping[str, Sequence[Mapping[str, tuple[float, float]]]], *, alt: str = ""
) -> go.Figure:
    """Draw what each rank holds of every part: a column for each rank, a row for each stage.

    held: stage -> for each rank, part -> (from where, to where) of the part's numbers, as shares of
    the whole.
    """
    stages = list(held)
    ranks = len(next(iter(held.values())))
    boxes: dict[str, list[Box]] = {part: [] for part in STATES}
    for row, stage in enumerate(stages):
        for rank, parts in enumerate(held[stage]):
            for column, part in enumerate(STATES):
                begin, end = parts[part]
                left = rank + GAP + column * (1 - 2 * GAP) / len(STATES)
                width = (1 - 2 * GAP) / len(STATES)
                top = -row * (1 + 2 * GAP)
                box = Box(left=left, width=width, top=top - begin, bottom=top - end)
                boxes[part].append(box)
    traces = [_blocks(part, boxes[part]) for part in STATES]
    frames = []
    for row in range(len(stages)):
        top = -row * (1 + 2 * GAP)
        for rank in range(ranks):
            frames.append(Box(left=rank + GAP, width=1 - 2 * GAP, top=top, bottom=top - 1))
    return style.figure(
        [outline(frames, width=1, hoverinfo="name"), *traces],
        x=style.axis(
            "rank",
            tickvals=[rank + 0.5 for rank in range(ranks)],
            ticktext=list(range(ranks)),
            range=[0, ranks],
            showgrid=False,
            zeroline=False,
        ),
        y=style.axis(
            tickvals=[-row * (1 + 2 * GAP) - 0.5 for row in range(len(stages))],
            ticktext=stages,
            showgrid=False,
            zeroline=False,
        ),
        alt=alt
        or "What each rank holds of parameters, gradients and optimizer states, at each stage.",
        height=110 + 90 * len(stages),
    )


def traffic(
    sent: Mapping[str, Mapping[str, float]],
    counted: Mapping[str, float] | None = None,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the bytes that a rank sends in a step: label -> purpose -> bytes.

    counted: label -> bytes, drawn as points.
    """
    widest = max([sum(parts.values()) for parts in sent.values()] + list((counted or {}).values()))
    unit = next(
        unit
        for unit, size in memory.UNITS.items()
        if widest >= memory.SMALLEST * size or unit == "B"
    )
    bars: list[Any] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": list(sent),
            "x": [parts.get(part, 0.0) / memory.UNITS[unit] for parts in sent.values()],
            "marker": look,
            "hovertemplate": f"%{{y}}, {part}: %{{x:.3g}} {unit}<extra></extra>",
        }
        for part, look in SENT.items()
        if any(parts.get(part) for parts in sent.values())
    ]
    if counted:
        values = [nbytes / memory.UNITS[unit] for nbytes in counted.values()]
        bars.append(
            lines.points(values, list(counted), "counted", style.COLOR["counted"], "counted")
        )
    return style.figure(
        bars,
        x=style.axis(
            f"sent by each rank in a step ({unit})", range=[0, 1.05 * widest / memory.UNITS[unit]]
        ),
        y=style.axis(autorange="reversed"),
        alt=alt or "Bytes that each rank sends in one step, by what they are for.",
        height=FRAME + memory.BAR * max(len(sent), 2),
        barmode="stack",
    )


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
    strength = [1.0 if stage == chosen else FADED for stage in held]
    widest = 1.03 * max([capacity, *(sum(parts.values()) for parts in held.values())]) / 1e9
    longest = 1.03 * max(sum(parts.values()) for parts in times.values())
    above = [
        {**bar, "marker": {**bar["marker"], "opacity": strength}} for bar in memory.stacked(held)
    ]
    looks = {part: {**look, "opacity": strength} for part, look in TIMES.items()}
    below = bar_rows(times, looks, "s", xaxis="x2", yaxis="y2", legend="legend2")
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    return style.figure(
        [*above, memory.limit_in_legend(), *below],
        x=style.axis("memory of a rank (GB)", range=[0, widest], anchor="y"),
        y=style.axis(autorange="reversed", domain=[0.63, 1]),
        xaxis2=style.axis("seconds of a step", range=[0, longest], anchor="y2"),
        yaxis2=style.axis(autorange="reversed", domain=[0, 0.34], anchor="x2"),
        shapes=[memory.limit(capacity / 1e9, yref="y domain")],
        legend={**legend, "y": 1.02},
        legend2={**legend, "y": 0.36},
        alt=alt or "Memory of a rank at each stage, and where the time of a step goes.",
        height=480,
        barmode="stack",
    )


def _blocks(part: str, boxes: Sequence[Box]) -> go.Scatter:
    look = memory.PARTS[part]
    area = outline(boxes, width=1, hoverinfo="name")
    return area.update(
        name=part,
        fill="toself",
        fillcolor=look["color"],
        fillpattern=look["pattern"],
        line={"color": look["color"], "width": 1},
        showlegend=True,
        hoveron="fills",
    )
