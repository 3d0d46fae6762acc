"""The figures of pipeline parallelism: schedules on a clock, what stages hold, what a cut costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.schedules import parse
from shardlab.trace import Event

from . import lines, memory, style, trace

KINDS = {  # the first letter of an action -> its name, colour, pattern
    "F": ("forward", style.BLUE, ""),
    "B": ("backward", style.GREEN, "/"),
    "I": ("input gradient", style.GREEN, "\\"),
    "W": ("weight gradients", style.OLIVE, "x"),
}
FAINT = "rgba(255, 255, 255, 0.3)"  # of patterns, so that numbers can be read on them
FADED = (1.0, 0.6, 0.45, 0.3)  # by chunk
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star")
Held = Sequence[tuple[float, float]]  # (from when, how much)
ROW, STRIP, GAP, FRAME = 30, 26, 24, 110  # pixels
THICK = 0.84  # of a row
LABELS = 24  # actions in a row, at most, that get a number


def gantt_and_memory(
    events: Sequence[Event], held: Sequence[Held], *, unit: str = "", alt: str = ""
) -> go.Figure:
    """Draw the actions of each stage with their microbatches; below, what each stage holds.

    Events as `costs.pipeline.timeline` or `ranks.pipeline` give them: op F3, or F3.1 for chunk 1,
    which is fainter; &B3 for an action that runs together with the one before it, drawn below it.
    held: for each stage (from when, how much), a step for each change; the most is shown as a
    number. unit: of the events' time, for the axis.
    """
    num_stages = len(held)
    end = max(event.end for event in events)
    height = FRAME + GAP + (ROW + STRIP) * num_stages
    below = STRIP * num_stages / (height - FRAME)
    return style.figure(
        [*_bars(events), _strips(held, end)],
        x=style.axis(f"time ({unit})" if unit else "time", anchor="y2"),
        y=_rows(num_stages, domain=[below + GAP / (height - FRAME), 1]),
        yaxis2=_rows(
            num_stages,
            "held",
            domain=[0, below],
            ticktext=[f"at most {max(amount for _, amount in steps):.3g}" for steps in held],
        ),
        alt=alt
        or f"What {num_stages} stages do against time, and the activations that each holds.",
        height=height,
        **_TOGETHER,
    )


def compared(timelines: Mapping[str, Sequence[Event]], *, alt: str = "") -> go.Figure:
    """Draw timelines above each other, each from its first action to its last: name -> events."""
    names = list(timelines)
    bars = []
    num_stages = [1 + max(event.rank for event in timelines[name]) for name in names]
    for number, name in enumerate(names):
        start = min(event.start for event in timelines[name])
        scale = 100 / (max(event.end for event in timelines[name]) - start)
        place = {"yaxis": f"y{number + 1}" if number else "y", "showlegend": number == 0}
        bars += [{**bar, **place} for bar in _bars(timelines[name], start, scale)]
    axes = {
        f"yaxis{number + 1}" if number else "yaxis": _rows(
            count,
            name,
            domain=[1 - (number + 1) / len(names) + 0.04, 1 - number / len(names) - 0.04],
        )
        for number, (name, count) in enumerate(zip(names, num_stages, strict=True))
    }
    return style.figure(
        bars,
        x=style.axis("share of the whole time (%)", anchor=f"y{len(names)}"),
        y=axes.pop("yaxis"),
        alt=alt or f"Timelines of the same schedule: {', '.join(names)}.",
        height=FRAME + (ROW + 10) * sum(num_stages),
        **axes,
        **_TOGETHER,
    )


def bubbles(
    microbatches: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    counted: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None,
    *,
    alt: str = "",
) -> go.Figure:
    """Draw the bubble, as a share of all time, against the number of microbatches.

    curves: schedule -> share (0 to 1) for each of `microbatches`, by formula. counted: schedule ->
    (microbatches, shares), of schedules that were played or run.
    """
    traces = [
        lines.line(microbatches, [100 * share for share in shares], name, *lines.look(i))
        for i, (name, shares) in enumerate(curves.items())
    ]
    for i, name in enumerate(curves):
        if name in (counted or {}):
            numbers, shares = (counted or {})[name]
            percent = [100 * share for share in shares]
            points = lines.points(numbers, percent, f"{name}, counted", lines.look(i)[0], "counted")
            traces.append(points)
    return style.figure(
        traces,
        x=style.axis("microbatches", type="log", tickvals=list(microbatches)),
        y=style.axis("bubble, share of all time (%)", rangemode="tozero"),
        alt=alt or "The bubble against the number of microbatches, for each schedule.",
    )


def trade(points: Mapping[str, tuple[float, float]], *, alt: str = "") -> go.Figure:
    """Draw each schedule's bubble against what it holds.

    points: name -> (activations of the fullest stage, bubble as a share, 0 to 1).
    """
    marks = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [held],
            "y": [100 * share],
            "name": name,
            "marker": {"color": lines.look(i)[0], "size": 13, "symbol": SYMBOLS[i % len(SYMBOLS)]},
            "hovertemplate": f"{name}: %{{x:.3g}} microbatches, %{{y:.3g}} %<extra></extra>",
        }
        for i, (name, (held, share)) in enumerate(points.items())
    ]
    widest, highest = (max(point[i] for point in points.values()) for i in (0, 1))
    return style.figure(
        marks,
        x=style.axis("activations of the fullest stage (microbatches)", range=[0, 1.15 * widest]),
        y=style.axis("bubble, share of all time (%)", range=[0, 115 * highest]),
        alt=alt or "For each schedule its bubble against the activations of its fullest stage.",
    )


def cut(
    seconds: Sequence[float],
    held: Sequence[Mapping[str, float]],
    *,
    capacity: float | None = None,
    alt: str = "",
) -> go.Figure:
    """Draw how long each stage takes for a microbatch; below, part -> bytes on each.

    The slowest stage is drawn stronger.
    """
    names = [f"stage {stage}" for stage in range(len(seconds))]
    strength = [1.0 if time == max(seconds) else 0.5 for time in seconds]
    above = {
        "type": "bar",
        "name": "forward and backward",
        "showlegend": False,
        "x": names,
        "y": [1e3 * time for time in seconds],
        "text": [f"{1e3 * time:.0f}" for time in seconds],
        "marker": {**trace.marker(style.COLOR["compute"], ""), "opacity": strength},
        "hovertemplate": "%{x}: %{y:.4g} ms<extra></extra>",
    }
    below = [
        {**bar, "orientation": "v", "x": bar["y"], "y": bar["x"], "yaxis": "y2"}
        for bar in memory.stacked(dict(zip(names, held, strict=True)))
    ]
    highest = max([sum(parts.values()) for parts in held] + [capacity or 0.0]) / 1e9
    return style.figure(
        [above, *below, *([] if capacity is None else [memory.limit_in_legend()])],
        x=style.axis(type="category", anchor="y2"),
        y=style.axis("ms per microbatch", domain=[0.56, 1], rangemode="tozero"),
        yaxis2=style.axis("memory (GB)", domain=[0, 0.46], range=[0, 1.05 * highest]),
        alt=alt or "How long each stage takes for a microbatch, and the memory that it needs.",
        height=440,
        barmode="stack",
        shapes=[] if capacity is None else [memory.across(capacity / 1e9, yref="y2")],
    )


_TOGETHER = {"barmode": "overlay", "bargap": 0, "uniformtext": {"minsize": 8, "mode": "hide"}}


def _rows(num_stages: int, title: str = "", **options: Any) -> dict[str, Any]:
    """Make an axis with a row for each stage, the first on top."""
    names = [f"stage {stage}" for stage in range(num_stages)]
    look = {
        "range": [num_stages - 0.5, -0.5],
        "tickvals": list(range(num_stages)),
        "ticktext": names,
    }
    return style.axis(title, **{**look, "zeroline": False, **options})


def _bars(events: Sequence[Event], start: float = 0.0, scale: float = 1.0) -> list[dict[str, Any]]:
    """Make a trace of bars for each kind of action."""
    actions = {event: parse(event.op)[0] for event in events}
    joined = {(event.rank, event.start) for event in events if actions[event].joined}
    numbers = len(events) <= LABELS * (1 + max(event.rank for event in events))
    found = []
    for kind in sorted({action.kind for action in actions.values()}, key="FBIW".index):
        mine = {event: action for event, action in actions.items() if action.kind == kind}
        name, color, shape = KINDS[kind]
        look = trace.marker(color, shape)
        look["pattern"]["fgcolor"] = FAINT
        half = [(event.rank, event.start) in joined for event in mine]
        below = [action.joined for action in mine.values()]
        faded = [min(action.chunk, len(FADED) - 1) for action in mine.values()]
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [event.rank for event in mine],
                "base": [(event.start - start) * scale for event in mine],
                "x": [event.seconds * scale for event in mine],
                "width": [THICK / (1 + each) for each in half],
                "offset": [0 if under else -THICK / 2 for under in below],
                "marker": {
                    **look,
                    "opacity": [FADED[step] for step in faded],
                },
                "text": [str(action.microbatch) for action in mine.values()] if numbers else None,
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"size": 11},
                "customdata": [str(action._replace(joined=False)) for action in mine.values()],
                "hovertemplate": (
                    "stage %{y}: %{customdata}, %{x:.3g} from %{base:.3g}<extra></extra>"
                ),
            }
        )
    return found


def _strips(held: Sequence[Held], end: float) -> dict[str, Any]:
    """Draw an area for each stage on its row's lower edge; the fullest stage fills its row."""
    most = max(amount for steps in held for _, amount in steps)
    x: list[float | None] = []
    y: list[float | None] = []
    for stage, steps in enumerate(held):
        floor = stage + THICK / 2
        height = floor  # y falls as a strip rises, for the first stage is on top
        x.append(steps[0][0])
        y.append(floor)
        for time, amount in steps:
            x += [time, time]
            y.append(height)
            height = floor - THICK * amount / most
            y.append(height)
        x += [end, end, None]
        y += [height, floor, None]
    look = {"color": style.COLOR["activations"], "width": 1}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "activations held",
        "x": x,
        "y": y,
        "yaxis": "y2",
        "fill": "toself",
        "line": look,
        "hoverinfo": "skip",
    }
