"""The figure of a trainer and a generator: what both do over some steps, and where GPU-seconds go."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from . import style, trace
from .bars import bar_rows

PARTS = {  # what the GPUs of both engines do
    "generate": trace.marker(style.BLUE, ""),
    "train": trace.marker(style.GREEN, "/"),
    "empty slots": trace.marker(style.GREY, "."),
    "wait for the other": trace.marker(style.RED, "x"),
    "switch, hand over": trace.marker(style.ORANGE, "|"),
}
Curve = Sequence[tuple[float, float]]  # steps, and the share of slots that write a text


def lanes(
    writing: Curve,
    training: Sequence[tuple[float, float]],
    split: Mapping[str, Mapping[str, float]],
    *,
    step: str,
    alt: str,
) -> go.Figure:
    """Draw both engines over some steps, and below the GPU-seconds of one in each placement.

    writing: the generator's full slots, a share at each time. training: when the trainer is busy,
    from and until. Times are in steps, which take as long as `step` says. split: placement -> a
    name of PARTS -> GPU-seconds, drawn as shares of the first placement's.
    """
    full = {
        "type": "scatter",
        "mode": "lines",
        "name": "slots that write",
        "x": [x for x, _ in writing],
        "y": [100 * y for _, y in writing],
        "line": {"color": style.BLUE, "width": 2, "shape": "hv"},
        "fill": "tozeroy",
        "hovertemplate": "step %{x:.3g}: %{y:.0f} % of the slots<extra></extra>",
    }
    blocks = {
        "type": "bar",
        "orientation": "h",
        "name": "trainer busy",
        "y": ["trainer"] * len(training),
        "base": [begin for begin, _ in training],
        "x": [end - begin for begin, end in training],
        "marker": PARTS["train"],
        "yaxis": "y2",
        "hovertemplate": "trains for %{x:.3g} steps<extra></extra>",
    }
    place = {"xaxis": "x3", "yaxis": "y3", "legend": "legend2"}
    first = next(iter(split))
    below = bar_rows(split, PARTS, "%", scale=100 / sum(split[first].values()), **place)
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    return style.figure(
        [full, blocks, *below],
        x=style.axis(f"steps, {step} each", anchor="y2"),
        y=style.axis("slots, %", range=[0, 105], domain=[0.66, 1]),
        yaxis2=style.axis(domain=[0.52, 0.62], anchor="x"),
        xaxis3=style.axis(f"GPU-seconds of a step ({first} = 100 %)", anchor="y3"),
        yaxis3=style.axis(autorange="reversed", domain=[0, 0.22], anchor="x3"),
        legend={**legend, "y": 1.02},
        legend2={**legend, "y": 0.24},
        alt=alt,
        height=470,
        barmode="stack",
    )
