"""The figures of collectives: the fastest algorithm by size, and fused tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from . import lines, style

SIZES = {
    1e3: "1 kB",
    1e4: "10 kB",
    1e5: "100 kB",
    1e6: "1 MB",
    1e7: "10 MB",
    1e8: "100 MB",
    1e9: "1 GB",
}
TIMES = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "100 ms"}
TIMES |= {1: "1 s", 10: "10 s", 100: "100 s", 1000: "1000 s"}
SYMBOLS = ("circle", "square", "diamond")


def crossover(
    sizes: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    bound: Sequence[float],
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the time of each algorithm against the size of the buffer, and mark the fastest.

    bound: seconds that no algorithm can beat, at each of `sizes`.
    """
    best = [min(times) for times in zip(*seconds.values(), strict=True)]
    traces = [
        _curve(sizes, best, "fastest", "rgba(128, 128, 128, 0.35)", "solid", width=11),
        _curve(sizes, bound, "lower bound", style.COLOR["limit"], "dot", width=2),
        *(
            _curve(sizes, times, name, *lines.look(i))
            for i, (name, times) in enumerate(seconds.items())
        ),
    ]
    return style.figure(
        traces,
        x=_size_axis(range=[2.9, 9.2]),  # from 1 kB to 1 GB, with room for the last label
        y=style.axis("time", type="log", tickvals=list(TIMES), ticktext=list(TIMES.values())),
        alt=alt or "Time of each all-reduce algorithm against the size of the buffer.",
        height=440,
    )


def fused(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw how many times as fast many small tensors are when fused, for each number of ranks."""
    dots = [
        go.Scatter(
            name=f"{row['ranks']} ranks",
            x=list(row["times as fast"]),
            y=[found["median"] for found in row["times as fast"].values()],
            error_y=_spread(list(row["times as fast"].values())),
            mode="markers",
            marker={"color": lines.look(index)[0], "symbol": SYMBOLS[index % 3], "size": 10},
        )
        for index, row in enumerate(rows)
    ]
    return style.figure(
        dots,
        x="fusion buffer",
        y=style.axis(
            "times as fast as one by one", type="log", tickvals=[1, 2, 5, 10, 20, 50, 100, 200]
        ),
        alt="How many times as fast an all-reduce of many small tensors is when they are fused.",
    )


def _spread(found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Make error bars from the first quartile to the third."""
    above = [each["quartile 3"] - each["median"] for each in found]
    below = [each["median"] - each["quartile 1"] for each in found]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 1.2,
        "width": 3,
    }


def _size_axis(**options: Any) -> dict[str, Any]:
    named = {"tickvals": list(SIZES), "ticktext": list(SIZES.values())}
    return style.axis("size of the buffer", type="log", **named, **options)


def _curve(
    x: Sequence[float], y: Sequence[float], name: str, color: str, dash: str, width: float = 2.5
) -> dict[str, Any]:
    look = {"color": color, "dash": dash, "width": width}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": look,
    }
