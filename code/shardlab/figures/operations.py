"""The figures of operations: what a run loses, by how often it saves, and where its hours went."""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from . import style
from .lines import line, look, points

MINUTES = {0.1: "6 s", 1: "1 min", 10: "10 min", 60: "1 h", 600: "10 h"}
ROOM = 0.12  # of a power of ten, beside the first point and the last
SECONDS = (0.1, 0.2, 0.5, 1, 2, 5)
LOOKS = {  # a loss -> colour and dash of its line
    "saving": (style.GREEN, "dash"),
    "repeating": (style.PURPLE, "dashdot"),
    "restarting": (style.GREY, "dot"),
    "together": (style.BLUE, "solid"),
}
COLORS = {"useful": style.BLUE, **{name: color for name, (color, _) in LOOKS.items()}}


def losses(
    minutes: Sequence[float],
    shares: Mapping[str, Sequence[float]],
    chosen: tuple[float, float],
) -> go.Figure:
    """Draw lost shares of the time against the minutes between two saves.

    shares: a name of LOOKS -> its share at each of `minutes`. chosen: minutes and share together of
    the point that is marked.
    """
    traces = [
        line(minutes, [100 * share for share in each], name, *LOOKS[name])
        for name, each in shares.items()
    ]
    x, y = chosen
    marked = points([x], [100 * y], "chosen", style.RED, "measured")
    return style.figure(
        [*traces, marked],
        x=style.axis(
            "training between two saves",
            type="log",
            tickvals=list(MINUTES),
            ticktext=list(MINUTES.values()),
            range=[log10(min(MINUTES)) - ROOM, log10(max(MINUTES)) + ROOM],
        ),
        y=style.axis("lost, % of the time", range=[0, 100]),
        alt="What a run loses to saves, repeated steps and restarts, by how often it saves.",
    )


def goodput(
    predicted: Mapping[str, Sequence[tuple[float, float]]],
    measured: Mapping[str, Sequence[tuple[float, float]]],
) -> go.Figure:
    """Draw the goodput against the seconds between two saves: a line and points for each way.

    predicted, measured: a way to save -> (seconds, share of the time that counts).
    """
    traces = []
    seconds = [x for curve in (*predicted.values(), *measured.values()) for x, _ in curve]
    for number, (way, curve) in enumerate(predicted.items()):
        color, dash = look(number)
        traces.append(line(*_percent(curve), f"{way}, predicted", color, dash))
        found = _percent(measured[way])
        traces.append(points(*found, f"{way}, measured", color, "measured"))
    return style.figure(
        traces,
        x=style.axis(
            "training between two saves, s",
            type="log",
            tickvals=SECONDS,
            ticktext=[f"{each:g}" for each in SECONDS],
            range=[log10(min(seconds)) - ROOM, log10(max(seconds)) + ROOM],
        ),
        y=style.axis("goodput, % of the time", rangemode="tozero"),
        alt="The goodput of runs that are killed again and again, by how often they save.",
    )


def _percent(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in curve], [100 * y for _, y in curve]


def hours(runs: Mapping[str, Sequence[tuple[str, float, float]]], until: float) -> go.Figure:
    """Draw where the first hours of runs went: a row for each run, a bar for each stretch.

    runs: name -> (kind of COLORS, start, end) in seconds. until: hours that are drawn.
    """
    bars = []
    for kind in ("useful", "saving", "repeating", "restarting"):
        rows = [
            (name, start / 3600, (min(end, 3600 * until) - start) / 3600)
            for name, stretches in runs.items()
            for what, start, end in stretches
            if what == kind and start < 3600 * until
        ]
        bars.append(
            go.Bar(
                y=[name for name, _, _ in rows],
                base=[start for _, start, _ in rows],
                x=[length for _, _, length in rows],
                name=kind,
                orientation="h",
                marker={"color": COLORS[kind], "line": {"width": 0}},
                hovertemplate=f"{kind}: %{{base:.3g}} h, for %{{x:.3g}} h<extra></extra>",
            )
        )
    return style.figure(
        bars,
        x=style.axis("hours", range=[0, until]),
        y=style.axis(categoryorder="array", categoryarray=[*runs][::-1]),
        alt=f"Where the first {until:g} hours of {len(runs)} runs went.",
        barmode="overlay",
        height=150 + 50 * len(runs),
    )
