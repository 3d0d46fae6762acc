"""The figure of composition: one rank among its peers, what it sends and what it holds."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from . import memory, placement, style, trace
from .bars import bar_rows

NAMES = placement.NAMES
PEERS = {  # of one rank: colour and symbol
    "itself": (style.RED, "star"),
    "tp": (style.COLOR["tp"], "square"),
    "pp": (style.COLOR["pp"], "triangle-up"),
    "dp": (style.COLOR["dp"], "diamond"),
    "none": (style.GREY, "circle-open"),
}
LINKS = {
    "its group is in one node": trace.marker(style.GREEN, ""),
    "in several": trace.marker(style.ORANGE, "x"),
}


def one_rank(
    peers: Mapping[str, Sequence[tuple[int, int]]],
    sent: Mapping[str, Mapping[str, float]],
    held: Mapping[str, float],
    capacity: float,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw all GPUs and the groups of GPU 0; below, what it sends by axis, and what it holds.

    peers: "itself", axis or "none" -> (GPU in its node, node) of each. sent: link (see LINKS) ->
    axis -> bytes.
    held: part -> bytes.
    """
    widest = max([sum(sent[link][axis] for link in sent) for axis in NAMES] + [1.0])
    unit = next(
        unit
        for unit, size in memory.UNITS.items()
        if widest >= memory.SMALLEST * size or unit == "B"
    )
    dots = [
        go.Scatter(
            x=[gpu for gpu, _ in peers[peer]],
            y=[node for _, node in peers[peer]],
            name={"itself": "GPU 0", "none": "others"}.get(peer, f"its {peer} group"),
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 10},
            hovertemplate="node %{y}, GPU %{x}<extra></extra>",
        )
        for peer, (color, symbol) in PEERS.items()
    ]
    by_axis = {
        name: {link: each[axis] for link, each in sent.items()} for axis, name in NAMES.items()
    }
    place = {"xaxis": "x3", "yaxis": "y3", "legend": "legend3"}
    messages = bar_rows(by_axis, LINKS, unit, scale=1 / memory.UNITS[unit], **place)
    legend = {"orientation": "h", "x": 0, "yanchor": "bottom", "traceorder": "normal"}
    below = memory.layout_below(held, capacity)
    return style.figure(
        [*dots, *messages, *memory.below(held)],
        x=style.axis("GPU in its node", domain=[0, 1], anchor="y", dtick=1),
        y=style.axis("node", domain=[0.66, 1], autorange="reversed", dtick=2),
        xaxis3=style.axis(f"sent by GPU 0 in a step ({unit})", anchor="y3", rangemode="tozero"),
        yaxis3=style.axis(domain=[0.335, 0.5], anchor="x3", autorange="reversed", dtick=1),
        legend3={**legend, "y": 0.51},
        alt=alt or "The groups of one GPU, what it sends along each axis, and what it holds.",
        height=630,
        barmode="stack",
        **{
            **below,
            "yaxis2": {**below["yaxis2"], "domain": [0, 0.075]},
            "legend2": {**legend, "y": 0.09},
        },
    )
