"""The figures of data parallelism: the share of a step spent waiting, and the speed-up."""

from collections.abc import Mapping, Sequence
from math import ceil, log10

import plotly.graph_objects as go

from shardlab.trace import Event

from . import memory, style, trace
from .lines import line, look, points

SHARES = {
    "without overlap": trace.marker(style.COLOR["idle"], "."),
    "with overlap": trace.marker(style.COLOR["communicate"], ""),
}
BAR, FRAME = 44, 110  # pixels
LABELS = 10  # powers of ten that an axis has room for


def shares(machines: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """Draw the share of a step spent waiting: label -> "without overlap" or "with ..." -> share."""
    bars = [
        go.Bar(
            orientation="h",
            name=name,
            y=list(machines),
            x=[100 * machine[name] for machine in machines.values()],
            text=[f"{100 * machine[name]:.0f} %" for machine in machines.values()],
            textposition="outside",
            cliponaxis=False,
            marker=look,
            hovertemplate="%{y}, " + name + ": %{x:.1f} %<extra></extra>",
        )
        for name, look in SHARES.items()
    ]
    return style.figure(
        bars,
        x=style.axis("share of the step spent waiting (%)", range=[0, 108]),
        y=style.axis(autorange="reversed"),
        alt="Share of a step spent waiting for all-reduces, without and with overlap, by machine.",
        height=FRAME + BAR * len(machines),
        barmode="group",
    )


def speedup(
    ranks: Sequence[int],
    predicted: Mapping[str, Sequence[float]],
    measured: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None,
) -> go.Figure:
    """Draw the speed-up against the number of ranks, beside the ideal one.

    predicted: name -> speed-up for each of `ranks`. measured: name -> (numbers of ranks,
    speed-ups).
    """
    traces = [line(ranks, list(ranks), "ideal", style.COLOR["ideal"], "dot")]
    for i, (name, gains) in enumerate(predicted.items()):
        traces.append(line(ranks, gains, name, *look(i)))
    for name, (counts, gains) in (measured or {}).items():
        traces.append(points(counts, gains, name, style.COLOR["measured"], "measured"))
    return style.figure(
        traces,
        x=style.axis("ranks", type="log", tickvals=list(ranks)),
        y=style.axis("speed-up", type="log", tickvals=list(ranks)),
        alt="Speed-up against the number of ranks: ideal, predicted, measured.",
    )


def drift(steps: Sequence[int], curves: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw how far replicas or runs are apart: name -> distance after each of `steps`."""
    seen = [log10(each) for curve in curves.values() for each in curve if each > 0]
    decades = max(seen, default=0) - min(seen, default=0)
    return style.figure(
        [line(steps, values, name, *look(i)) for i, (name, values) in enumerate(curves.items())],
        x="training step",
        y=style.axis(
            "distance between the parameters",
            type="log",
            exponentformat="power",
            dtick=ceil(decades / LABELS) or 1,
        ),
        alt="Distance between the parameters against the training step.",
    )


def timeline_and_memory(
    events: Sequence[Event],
    held: Mapping[str, float],
    capacity: float,
    *,
    step: str,
    alt: str = "",
) -> go.Figure:
    """Draw a rank's step as a timeline; below, the bytes it holds beside its chip's capacity.

    step: how long the step takes. A step is 100 % of the axis.
    """
    whole = max(event.end for event in events) - min(event.start for event in events)
    verbs = ["computes", "communicates"]  # both rows, also where a rank has no other to send to
    rows = [f"rank {events[0].rank} {verb}" for verb in verbs]
    return style.figure(
        [*trace.spans(events, unit="%", scale=100 / whole), *memory.below(held)],
        x=style.axis(f"share of a step of {step} (%)"),
        y=style.axis(
            domain=[0.5, 1],
            categoryorder="array",
            categoryarray=rows,
            range=[1.5, -0.5],
            tickvals=rows,
            ticktext=["computes", "sends"],  # short, for a phone
        ),
        alt=alt,
        height=440,
        barmode="stack",
        **memory.layout_below(held, capacity),
    )
