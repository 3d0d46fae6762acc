"""The figures of tensor parallelism: what each rank holds, to scale, and the time of a layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.sharding.cuts import Cut

from . import lines, style, trace
from . import memory as memory_figures
from .boxes import Box, corners

PARTS = {  # of the time of a layer
    "matrices": trace.part("compute"),
    "attention": trace.part("compute", 1),
    "norms and residuals": trace.part("compute", 2),
    "waiting": trace.part("idle"),
}
MOST_RANKS = len(style.RANKS)  # that have a look of their own; of more, only the first has
OTHERS, COPIED = "other ranks", "copied"  # names in the legend
GAP_ACROSS = 0.2  # between matrices, as a share of the hidden size
GAP_DOWN = 0.35  # with room for a name
# The narrowest piece with a number, as a share of h: on a phone, the height of a digit.
READABLE = 0.24
FADED = 0.4  # the numbers of ranks that are not chosen


def pieces(layer: Mapping[str, Cut], *, alt: str = "") -> go.Figure:
    """Draw the matrices of a layer to scale, inputs down and outputs across, as in X @ A.

    Each rank has a colour.

    layer: name of a parameter -> how it is cut, as `cuts.block` has it; of these, the matrices are
    drawn.
    """
    matrices = {name.split(".")[1]: cut for name, cut in layer.items() if len(cut.shape) > 1}
    places = _places(matrices)
    hidden_size = matrices["q"].shape[1]
    drawn: dict[str, list[Box]] = {}
    numbers: list[tuple[float, float, str]] = []
    inks: list[str] = []
    for name, (left, top) in places.items():
        cut = matrices[name]
        for rank in range(0, cut.ranks, cut.holders):
            box = _piece(left, top, cut, rank)
            drawn.setdefault(_owner(cut, rank), []).append(box)
            if _has_number(cut) and min(box.width, box.height) >= READABLE * hidden_size:
                middle = box.left + box.width / 2
                numbers.append((middle, box.top - box.height / 2, str(rank)))
                inks.append(style.ink(_color(_owner(cut, rank))))
    names = [(left, top, name) for name, (left, top) in places.items()]
    lowest = min(top - matrices[name].shape[1] for name, (_, top) in places.items())
    texts = [
        _texts(numbers, "middle center", {"size": 11, "color": inks}),
        _texts(names, "top right", {"size": 13}),
    ]
    return style.figure(
        [*(_area(name, drawn[name]) for name in _in_order(drawn)), *texts],
        x={"visible": False, "constrain": "domain"},
        y={"visible": False, "scaleanchor": "x", "range": [1.02 * lowest, GAP_DOWN * hidden_size]},
        alt=alt or "The matrices of a layer, drawn to scale and cut into one piece for each rank.",
        height=400,
    )


def efficiency(ranks: Sequence[int], predicted: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw the share of perfect scaling against tp: name -> share for each of `ranks`."""
    curves = [
        lines.line(ranks, [100 * share for share in shares], name, *lines.look(i))
        for i, (name, shares) in enumerate(predicted.items())
    ]
    return style.figure(
        curves,
        x=style.axis("tp (ranks that share each layer)", type="log", tickvals=list(ranks)),
        y=style.axis("efficiency (%)", range=[0, 104]),
        alt="Efficiency against the number of ranks that share each layer.",
    )


def shares_and_memory(
    ranks: Sequence[int],
    parts: Sequence[Mapping[str, float]],
    chosen: int,
    memory: Mapping[str, float],
    capacity: float,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the parts of a layer's time for each tp; below, the bytes of a rank and the capacity.

    parts: for each of `ranks`, part of a layer's time -> seconds. chosen: one of `ranks`, drawn
    stronger.
    """
    strength = [1.0 if count == chosen else FADED for count in ranks]
    bars: list[Any] = [
        {
            "type": "bar",
            "name": part,
            "x": [str(count) for count in ranks],
            "y": [100 * each[part] / sum(each.values()) for each in parts],
            "marker": {**look, "opacity": strength},
            "hovertemplate": f"tp = %{{x}}, {part}: %{{y:.1f}} %<extra></extra>",
        }
        for part, look in PARTS.items()
    ]
    return style.figure(
        [*bars, *memory_figures.below(memory)],
        x=style.axis("tp (ranks that share each layer)", type="category"),
        y=style.axis("share of a layer's time (%)", domain=[0.54, 1], range=[0, 100]),
        alt=alt,
        height=500,
        barmode="stack",
        **memory_figures.layout_below(memory, capacity),
    )


def _places(matrices: Mapping[str, Cut]) -> dict[str, tuple[float, float]]:
    """Place each matrix, (left, top): attention in a row, gate and up below, down at the right."""
    hidden_size = matrices["q"].shape[1]
    places = {}
    left = 0.0
    top = 0.0
    for name in ("q", "k", "v", "out"):
        places[name] = left, top
        left += matrices[name].shape[0] + GAP_ACROSS * hidden_size
    for name in [each for each in ("gate", "up") if each in matrices]:
        top -= (1 + GAP_DOWN) * hidden_size
        places[name] = 0.0, top
    return {**places, "down": (max(left, matrices["up"].shape[0] + GAP_ACROSS * hidden_size), 0.0)}


def _piece(left: float, top: float, cut: Cut, rank: int) -> Box:
    held = cut.held(rank)
    outputs, inputs = cut.shape
    if cut.dim == 0:
        return Box(left=left + held.start, width=len(held), top=top, bottom=top - inputs)
    top -= held.start
    return Box(left=left, width=outputs, top=top, bottom=top - len(held))


def _has_number(cut: Cut) -> bool:
    return 1 < cut.ranks <= MOST_RANKS and cut.holders == 1


def _owner(cut: Cut, rank: int) -> str:
    if cut.holders > 1:
        return COPIED
    return f"rank {rank}" if rank == 0 or cut.ranks <= MOST_RANKS else OTHERS


def _in_order(drawn: Mapping[str, Any]) -> list[str]:
    last = [name for name in (OTHERS, COPIED) if name in drawn]
    return sorted(set(drawn) - set(last), key=lambda name: int(name.split()[1])) + last


def _area(name: str, boxes: Sequence[Box]) -> go.Scatter:
    x, y = corners(boxes)
    border = 0 if name == COPIED else 0.6  # copied pieces are too narrow for one
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines",
        fill="toself",
        fillcolor=_color(name),
        line={"color": "white", "width": border},
        hoveron="fills",
        hoverinfo="name",
    )


def _color(name: str) -> str:
    named = {OTHERS: style.GREY, COPIED: style.tint(style.GREY, 2)}
    return named[name] if name in named else style.RANKS[int(name.split()[1])]


def _texts(
    places: Sequence[tuple[float, float, str]], position: str, font: Mapping[str, Any]
) -> go.Scatter:
    return go.Scatter(
        x=[x for x, _, _ in places],
        y=[y for _, y, _ in places],
        text=[text for _, _, text in places],
        mode="text",
        textposition=position,
        textfont=font,
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
    )
