"""The figures of interconnects: the busiest hops, NCCL's choices, and what the fabric leaves."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from . import style
from .lines import line, look, points

HOP = 34  # pixels of a row
NODES = [2, 8, 32, 128, 512]
ALGORITHMS = {"ring": "circle", "tree": "triangle-up", "NVLS": "square", "NVLS tree": "star"}
SIZES = {2**12: "4 KiB", 2**17: "128 KiB", 2**22: "4 MiB", 2**27: "128 MiB", 2**32: "4 GiB"}


def choices(
    sizes: Sequence[float],
    lines: Mapping[str, Sequence[tuple[str, float]]],
    printed: Mapping[str, float],
) -> go.Figure:
    """Draw what a library takes at each of `sizes` and the bus bandwidth that it expects.

    sizes: of the buffer in bytes. lines: machine -> at each size "algorithm, protocol" and bytes/s.
    printed: machine -> the bytes/s that others measured for the longest buffers.
    """
    traces = []
    for i, (name, each) in enumerate(lines.items()):
        trace = line(sizes, [rate / 1e9 for _, rate in each], name, *look(i))
        symbols = [ALGORITHMS[way.partition(",")[0]] for way, _ in each]
        trace.update(mode="lines+markers", marker={"symbol": symbols, "size": 9})
        hover = "%{text}: %{y:.3g} GB/s<extra></extra>"
        trace.update(text=[way for way, _ in each], hovertemplate=hover)
        traces.append(trace)
    for name, symbol in ALGORITHMS.items():
        look_alike = {"symbol": symbol, "size": 9, "color": style.GREY}
        traces.append(go.Scatter(x=[None], y=[None], name=name, mode="markers", marker=look_alike))
    rates = [rate / 1e9 for rate in printed.values()]
    told = points([sizes[-1]] * len(rates), rates, "printed", style.COLOR["measured"], "measured")
    hover = "%{text} printed %{y:.3g} GB/s<extra></extra>"
    told.update(text=list(printed), hovertemplate=hover)
    return style.figure(
        [*traces, told],
        x=style.axis("buffer", type="log", tickvals=list(SIZES), ticktext=list(SIZES.values())),
        y=style.axis("bus bandwidth (GB/s)", rangemode="tozero"),
        alt="The bus bandwidth that NCCL expects by size, with the algorithm that it takes.",
    )


def busy(seconds: Mapping[str, float], kinds: Sequence[str]) -> go.Figure:
    """Draw how long the busiest hop of each kind is busy: kind -> seconds.

    kinds: the rows from below; one without a hop stays empty.
    """
    times = [1e3 * each for each in seconds.values()]
    dots = points(times, list(seconds), "busiest hop", style.COLOR["communicate"], "counted")
    dots.update(mode="markers+text", text=[f"{time:.3g} ms" for time in times])
    dots.update(textposition="top center", hoverinfo="x", cliponaxis=False)
    return style.figure(
        [dots],
        height=HOP * len(kinds) + 90,
        x=style.axis("busy for at least (ms)", type="log", dtick=1),
        y=style.axis(
            type="category",
            categoryarray=list(kinds),
            tickvals=list(kinds),
            range=[-0.5, len(kinds) - 0.3],
        ),
        alt="How long the busiest hop of each kind is busy.",
    )


def card_rates(
    nodes: Sequence[int], rates: Mapping[str, Sequence[float]], chosen: int
) -> go.Figure:
    """Draw what a card reaches against the number of nodes: traffic -> bytes/s at each of `nodes`.

    chosen: the number of nodes that is marked.
    """
    traces = [
        line(nodes, [rate / 1e9 for rate in each], name, *look(i))
        for i, (name, each) in enumerate(rates.items())
    ]
    at = {"color": style.COLOR["limit"], "width": 2, "dash": "dash"}
    upright = {"type": "line", "x0": chosen, "x1": chosen, "y0": 0, "y1": 1, "yref": "paper"}
    return style.figure(
        traces,
        x=style.axis("nodes of eight GPUs", type="log", tickvals=NODES),
        y=style.axis("GB/s of each card", rangemode="tozero"),
        alt="The rate that every card reaches, against the number of nodes.",
        shapes=[{**upright, "line": at}],
    )
