"""The figures of composition: the groups of ranks, the piece of each rank, and one rank's peers."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.sharding.layout import Holding

from . import memory, placement, style, trace
from .bars import bar_rows
from .boxes import Box, outline

GROUPS = [
    trace.legible(trace.marker(color, shape))
    for shape in ("", "/", "x")
    for color in style.PALETTE[:-1]
]  # looks of groups
GAP, ROOM = 0.12, 0.5  # between boxes, and between nodes, as shares of a box
NAMES = placement.NAMES
PEERS = {  # of one rank: colour and symbol
    "itself": (style.RED, "star"),
    "tp": (style.PURPLE, "square"),
    "pp": (style.GREEN, "triangle-up"),
    "dp": (style.ORANGE, "diamond"),
    "none": (style.GREY, "circle-open"),
}
Number = tuple[float, float, str, str]  # x, y, text, colour
LINKS = {
    "its group is in one node": trace.marker(style.GREEN, ""),
    "in several": trace.marker(style.ORANGE, "x"),
}
KEPT = trace.marker("rgba(128, 128, 128, 0.6)", "")  # the part of its piece that a rank updates


def mesh(
    groups: Mapping[str, Sequence[Sequence[int]]], per_node: int, *, alt: str = ""
) -> go.Figure:
    """Draw all ranks in their nodes, once for each axis: a group has one look and one letter.

    groups: axis -> its groups of ranks, as `layout.groups` lists them.
    """
    boxes: dict[int, list[Box]] = {}
    texts: list[Number] = []
    frames: list[Box] = []
    for row, each in enumerate(groups.values()):
        num_ranks = sum(map(len, each))
        for number, group in enumerate(each):
            for rank in group:
                left, top = _place(rank, per_node), -row * (1 + ROOM)
                box = Box(left=left, width=1 - GAP, top=top, bottom=top - 1)
                boxes.setdefault(number, []).append(box)
                text = f"{rank}<sub>{_letter(number)}</sub>"
                ink = style.ink(GROUPS[number % len(GROUPS)]["color"])
                texts.append((left + (1 - GAP) / 2, top - 0.5, text, ink))
        for first in range(0, num_ranks, per_node):
            last = min(first + per_node, num_ranks) - 1
            left, top = _place(first, per_node) - GAP, GAP - row * (1 + ROOM)
            width = _place(last, per_node) + 1 - left
            frames.append(Box(left=left, width=width, top=top, bottom=top - 1 - 2 * GAP))
    areas = [
        _area(f"group {_letter(number)}", GROUPS[number % len(GROUPS)], each)
        for number, each in boxes.items()
    ]
    ticks = [-row * (1 + ROOM) - 0.5 for row in range(len(groups))]
    return style.figure(
        [outline(frames, width=1.5), *areas, _numbers(texts)],
        x={"visible": False},
        y=style.axis(tickvals=ticks, ticktext=list(groups), showgrid=False, zeroline=False),
        alt=alt or "All ranks in their nodes, three times: marked by their group along each axis.",
        height=110 + 75 * len(groups),
    )


def pieces(held: Sequence[Holding], per_node: int, *, alt: str = "") -> go.Figure:
    """Draw each replica's model as a rectangle, layers down and width across, cut into pieces.

    The piece of a rank has the look of its node.
    held: what each rank holds, from `layout.holdings`.
    """
    boxes: dict[int, list[Box]] = {}
    kept: list[Box] = []
    texts: list[Number] = []
    for rank, each in enumerate(held):
        (left, right), (top, bottom), (begin, end) = each.width, each.depth, each.states
        start = each.replica * (1 + 2 * GAP)
        height = bottom - top
        piece = Box(left=start + left, width=right - left, top=-top, bottom=-bottom)
        boxes.setdefault(rank // per_node, []).append(piece)
        number = -top - _free(begin, end) * height
        ink = style.ink(GROUPS[rank // per_node % len(GROUPS)]["color"])
        texts.append((start + (left + right) / 2, number, str(rank), ink))
        if (begin, end) != (0, 1):
            upper = -top - begin * height
            lower = -top - end * height
            kept.append(Box(left=start + left, width=right - left, top=upper, bottom=lower))
    areas = [
        _area(f"node {node}", GROUPS[node % len(GROUPS)], each)
        for node, each in sorted(boxes.items())
    ]
    replicas = 1 + max(each.replica for each in held)
    marked = (
        [_area("its share of the optimizer", KEPT, kept).update(line={"width": 0})] if kept else []
    )
    return style.figure(
        [*areas, *marked, _numbers(texts)],
        x=style.axis(
            "across: the width of the layers",
            tickvals=[replica * (1 + 2 * GAP) + 0.5 for replica in range(replicas)],
            ticktext=[f"replica {replica}" for replica in range(replicas)],
            showgrid=False,
            zeroline=False,
        ),
        y=style.axis("down: the layers", showticklabels=False, showgrid=False, zeroline=False),
        alt=alt or "The model as a rectangle for each replica, cut into one piece for each rank.",
        height=380,
    )


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
            marker={"color": color, "symbol": symbol, "size": 12},
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
        y=style.axis("node", domain=[0.66, 1], autorange="reversed", dtick=1),
        xaxis3=style.axis(f"sent by GPU 0 in a step ({unit})", anchor="y3", rangemode="tozero"),
        yaxis3=style.axis(domain=[0.335, 0.45], anchor="x3", autorange="reversed"),
        legend3={**legend, "y": 0.46},
        alt=alt or "The groups of one GPU, what it sends along each axis, and what it holds.",
        height=630,
        barmode="stack",
        **{
            **below,
            "yaxis2": {**below["yaxis2"], "domain": [0, 0.075]},
            "legend2": {**legend, "y": 0.09},
        },
    )


def _free(begin: float, end: float) -> float:
    """Return the height at which a number stands clear of the shaded part of its piece."""
    if (begin, end) == (0, 1):
        return 0.5
    return (end + 1) / 2 if begin + end < 1 else begin / 2


def _letter(number: int) -> str:
    return chr(ord("a") + number)


def _place(rank: int, per_node: int) -> float:
    return rank + ROOM * (rank // per_node)


def _area(name: str, look: Mapping[str, Any], boxes: Sequence[Box]) -> go.Scatter:
    area = outline(boxes, width=1.5)
    area.update(
        name=name,
        fill="toself",
        fillcolor=look["color"],
        fillpattern=look["pattern"],
        showlegend=True,
    )
    return area.update(line={"color": "white", "width": 1}, hoveron="fills", hoverinfo="name")


def _numbers(texts: Sequence[Number]) -> go.Scatter:
    """Write the numbers of ranks into their boxes."""
    return go.Scatter(
        x=[x for x, *_ in texts],
        y=[y for _, y, *_ in texts],
        text=[f"<b>{text}</b>" for *_, text, _ in texts],
        mode="text",
        textfont={"size": 13, "color": [ink for *_, ink in texts]},
        showlegend=False,
        hoverinfo="skip",
    )
