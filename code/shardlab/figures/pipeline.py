"""The figure of pipeline parallelism: a schedule on a clock, and what stages hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.schedules import parse
from shardlab.trace import Event

from . import lines, style, trace

KINDS = {  # the first letter of an action -> its name, colour, pattern
    "F": ("forward", style.BLUE, ""),
    "B": ("backward", style.GREEN, "/"),
    "I": ("input gradient", style.GREEN, "\\"),
    "W": ("weight gradients", style.OLIVE, "x"),
}
FAINT = "rgba(255, 255, 255, 0.3)"  # of patterns, so that numbers can be read on them
PALER = (0, 1, 3)  # tints, by chunk: on a dark page, too, nothing fades
Held = Sequence[tuple[float, float]]  # (from when, how much)
ROW, STRIP, GAP, FRAME = 30, 26, 24, 110  # pixels
THICK = 0.84  # of a row
LABELS = 24  # actions in a row, at most, that get a number


def gantt_and_memory(
    events: Sequence[Event], held: Sequence[Held], *, unit: str = "", alt: str = ""
) -> go.Figure:
    """Draw the actions of each stage with their microbatches; below, what each stage holds.

    Events as `costs.pipeline.timeline` or `ranks.pipeline` give them: op F3, or F3.1 for chunk 1,
    which is paler; &B3 for an action that runs together with the one before it, drawn below it.
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


def losses(steps: Sequence[int], curves: Mapping[str, Sequence[float]]) -> go.Figure:
    """Draw training losses: name -> loss after each of `steps`."""
    curve = enumerate(curves.items())
    return style.figure(
        [lines.line(steps, y, name, *lines.look(index)) for index, (name, y) in curve],
        x="training step",
        y=style.axis("loss (nats per token)"),
        alt="Loss against the training step.",
    )


_TOGETHER: dict[str, Any] = {
    "barmode": "overlay",
    "bargap": 0,
    "uniformtext": {"minsize": 8, "mode": "hide"},
}


def _rows(num_stages: int, title: str = "", **options: Any) -> dict[str, Any]:
    """Make an axis with a row for each stage, the first on top."""
    names = [f"stage {stage}" for stage in range(num_stages)]
    look = {
        "range": [num_stages - 0.5, -0.5],
        "tickvals": list(range(num_stages)),
        "ticktext": names,
    }
    return style.axis(title, **{**look, "zeroline": False, **options})


def _bars(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Make a trace of bars for each kind of action."""
    actions = {event: parse(event.op)[0] for event in events}
    joined = {(event.rank, event.start) for event in events if actions[event].joined}
    numbers = len(events) <= LABELS * (1 + max(event.rank for event in events))
    found = []
    for kind in sorted({action.kind for action in actions.values()}, key="FBIW".index):
        kept = [each for each in actions.items() if each[1].kind == kind]
        mine = dict(sorted(kept, key=lambda each: each[1].chunk))  # a legend shows the first bar
        name, color, shape = KINDS[kind]
        look = trace.marker(color, shape)
        look["pattern"]["fgcolor"] = FAINT
        half = [(event.rank, event.start) in joined for event in mine]
        below = [action.joined for action in mine.values()]
        shades = [PALER[min(action.chunk, len(PALER) - 1)] for action in mine.values()]
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [event.rank for event in mine],
                "base": [event.start for event in mine],
                "x": [event.seconds for event in mine],
                "width": [THICK / (1 + each) for each in half],
                "offset": [0 if under else -THICK / 2 for under in below],
                "marker": {**look, "color": [style.tint(color, shade) for shade in shades]},
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
