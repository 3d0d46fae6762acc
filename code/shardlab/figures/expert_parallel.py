"""The figures of expert parallelism: load of experts and ranks, time."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style, trace
from .lines import line

FITS = trace.marker(style.COLOR["compute"], "")
DROPPED = trace.marker(style.COLOR["limit"], "x")
WAITING = trace.part("idle")
TIMES = {  # parts of a layer's forward
    "attention": trace.part("compute"),
    "shared experts": trace.marker(style.GREEN, "x"),
    "routed experts": trace.marker(style.PURPLE, "|"),
    "all-to-all, hidden": trace.part("communicate", 1),
    "all-to-all, exposed": trace.part("communicate"),
}


def load(
    fits: Sequence[float], dropped: Sequence[float], ranks: int, *, alt: str = ""
) -> go.Figure:
    """Draw the load of every expert; below, the load of every rank and how long it waits.

    Loads are in even loads. fits, dropped: tokens of each expert that find a slot, and that do not.
    Each of `ranks` neighbours has as many experts.
    """
    size = len(fits) // ranks
    names = [f"rank {rank}" for rank in range(ranks)]
    mean = (sum(fits) + sum(dropped)) / len(fits)
    fits, dropped = ([count / mean for count in counts] for counts in (fits, dropped))
    held = [sum(fits[size * rank : size * (rank + 1)]) / size for rank in range(ranks)]
    experts = [str(expert) for expert in range(len(fits))]
    idle = [max(held) - count for count in held]
    return style.figure(
        [
            _columns("tokens that fit", experts, fits, FITS),
            _columns("no slot left", experts, dropped, DROPPED),
            line([experts[0], experts[-1]], [1, 1], "even load", style.COLOR["ideal"], "dash"),
            _row("computes", names, held, FITS),
            _row("waits", names, idle, WAITING),
        ],
        x=style.axis("expert", type="category", range=[-0.5, len(fits) - 0.5]),
        y=style.axis("times the even load", domain=[0.54, 1], rangemode="tozero"),
        xaxis2=style.axis("rank: times the even load", anchor="y2", rangemode="tozero"),
        yaxis2=style.axis(autorange="reversed", domain=[0, 0.36], anchor="x2", dtick=1),
        alt=alt or "Tokens of every expert; below, tokens of every rank, and how long it waits.",
        height=560,
        barmode="stack",
        bargap=0.15,
    )


def _columns(
    name: str, experts: Sequence[str], counts: Sequence[float], shape: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": list(experts),
        "y": list(counts),
        "marker": shape,
        "hovertemplate": f"expert %{{x}}, {name}: %{{y:.2f}} even loads<extra></extra>",
    }


def _row(
    name: str, ranks: Sequence[str], counts: Sequence[float], shape: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": list(counts),
        "y": list(ranks),
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": shape,
        "showlegend": name == "waits",
        "hovertemplate": f"%{{y}} {name}: %{{x:.2f}} even loads<extra></extra>",
    }
