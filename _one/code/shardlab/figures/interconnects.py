"""The figures of interconnects: bandwidths of links, bus bandwidths, NCCL's choices, the fabric."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import style
from .lines import line, look, points
from .trace import marker

KINDS = {
    "NVLink": marker(style.GREEN, ""),
    "Infinity Fabric": marker(style.GREEN, "-"),
    "ICI": marker(style.GREEN, "+"),
    "PCIe": marker(style.BLUE, "/"),
    "network": marker(style.ORANGE, "x"),
}
BAR, FRAME = 26, 120  # pixels
TICKS = [0.1, 1, 10, 100, 1000]  # GB/s
NODES = [2, 8, 32, 128, 512]
ALGORITHMS = {"ring": "circle", "tree": "triangle-up", "NVLS": "square", "NVLS tree": "star"}
SIZES = {2**12: "4 KiB", 2**17: "128 KiB", 2**22: "4 MiB", 2**27: "128 MiB", 2**32: "4 GiB"}


def generations(rates: Mapping[str, Mapping[str, float]], *, alt: str = "") -> go.Figure:
    """Draw the bandwidth of one GPU in one direction: machine -> kind of link -> bytes/s."""
    pairs = [
        {
            **_bar(
                kind,
                list(rates),
                [each.get(kind, 0) / 1e9 or None for each in rates.values()],
                kind_look,
            ),
            "text": [f"{each[kind] / 1e9:.3g}" if kind in each else "" for each in rates.values()],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": f"%{{y}}, {kind}: %{{x:.4g}} GB/s<extra></extra>",
        }
        for kind, kind_look in KINDS.items()
        if any(kind in each for each in rates.values())
    ]
    return style.figure(
        pairs,
        x=style.axis("GB/s per GPU, one direction", type="log", range=[-0.7, 3.4], tickvals=TICKS),
        y=style.axis(autorange="reversed"),
        alt=alt or "Bandwidth of one GPU in one direction, by machine and kind of link.",
        height=FRAME + 3 * BAR * len(rates),
        barmode="group",
    )


def bus_bandwidths(rows: Mapping[str, tuple[float, float, float]], *, alt: str = "") -> go.Figure:
    """Draw published bus bandwidths: label -> (measured, expected, rate of the wires), bytes/s."""
    names = list(rows)
    measured, expected, wires = ([each[i] / 1e9 for each in rows.values()] for i in range(3))
    traces = [
        _bar("rate of the slowest link", names, wires, marker("rgba(138, 143, 152, 0.25)", "")),
        _dots("expected", names, expected, style.COLOR["predicted"], style.SYMBOL["predicted"]),
        _dots("measured", names, measured, style.COLOR["measured"], style.SYMBOL["measured"]),
    ]
    return style.figure(
        traces,
        x=style.axis("bus bandwidth (GB/s)", rangemode="tozero"),
        y=style.axis(autorange="reversed", tickfont={"size": 10}),
        alt=alt or "Published bus bandwidths beside what the wiring lets one expect.",
        height=FRAME + BAR * len(rows),
    )


def choices(
    sizes: Sequence[float],
    lines: Mapping[str, Sequence[tuple[str, float]]],
    printed: Mapping[str, float],
    *,
    alt: str = "",
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
        alt=alt or "The bus bandwidth that NCCL expects by size, with the algorithm that it takes.",
    )


def card_rates(
    nodes: Sequence[int], rates: Mapping[str, Sequence[float]], chosen: int, *, alt: str = ""
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
        alt=alt or "The rate that every card reaches, against the number of nodes.",
        shapes=[{**upright, "line": at}],
    )


def _bar(
    name: str, y: Sequence[str], x: Sequence[float | None], appearance: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(y),
        "x": list(x),
        "marker": dict(appearance),
    }


def _dots(
    name: str, y: Sequence[str], x: Sequence[float], color: str, symbol: str
) -> dict[str, Any]:
    look = {"color": color, "symbol": symbol, "size": 10, "line": {"width": 2, "color": color}}
    hover = f"%{{y}}, {name}: %{{x:.1f}} GB/s<extra></extra>"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "y": list(y),
        "x": list(x),
        "marker": look,
        "hovertemplate": hover,
    }
