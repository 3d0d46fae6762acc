"""A replayed trace: what every rank did, and how busy every link was, with the cluster's name."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from shardlab.trace import Event

from . import style, trace

ROW, THIN, FRAME, GAP = 30, 30, 170, 14  # pixels
PART = 0.06  # of the height, between two replays
LEVELS = {  # up to this share of its rate, in percent -> the look of a link
    33: trace.marker("rgba(150, 76, 183, 0.3)", "."),
    67: trace.marker("rgba(150, 76, 183, 0.65)", "/"),
    100: trace.marker(style.PURPLE, ""),
}


def timeline(
    events: Sequence[Event],
    links: Mapping[str, Sequence[tuple[float, float]]],
    where: str,
    *,
    ranks: Sequence[int] | None = None,
) -> go.Figure:
    """Draw two rows for each rank, and one for each link.

    links: name -> (from when, share of the link's rate), until the next. where: "replayed on …".
    ranks: those drawn.
    Errors: ValueError for no events.
    """
    shown = [event for event in events if ranks is None or event.rank in ranks]
    if not shown:
        raise ValueError("a timeline needs events; replay some")
    rows = list(dict.fromkeys(trace.row(event) for event in sorted(shown, key=_place)))
    height = FRAME + GAP + ROW * (len(rows) + len(links))
    below = ROW * len(links) / (height - FRAME)
    last = max(event.end for event in shown) * trace.UNITS["ms"]
    return style.figure(
        [*trace.spans(_from_zero(shown)), *_busy(links, trace.UNITS["ms"])],
        x=style.axis(
            f"time (ms)<br>{where}", range=[0, 1.01 * last], anchor="y2" if links else "y"
        ),
        y=_rows(rows, [below + GAP / (height - FRAME) if links else 0, 1]),
        alt=f"{where}: what each rank computed and communicated, and how busy the links were.",
        height=height,
        barmode="overlay",
        bargap=0.25,
        yaxis2=_rows(list(links), [0, below], anchor="x"),
    )


def busy(
    replays: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    where: str,
    *,
    unit: str = "ms",
) -> go.Figure:
    """Draw when the links of several replays carried something, all on one clock.

    Links of a kind that carry the same at the same times are one row.
    replays: name -> link -> (from when, share of the link's rate), until the next. where: "replayed
    on …".
    Errors: ValueError for an unknown unit.
    """
    if unit not in trace.UNITS:
        raise ValueError(f"unknown unit {unit!r}; known: {', '.join(trace.UNITS)}")
    scale = trace.UNITS[unit]
    replays = {name: _rows_of(name, links) for name, links in replays.items()}
    axes = ["y", *(f"y{number}" for number in range(2, len(replays) + 1))]
    thin = (1 - PART * (len(axes) - 1)) / sum(map(len, replays.values()))  # of one link
    below = 1 + PART
    bars: list[dict[str, Any]] = []
    rows: dict[str, Any] = {}
    for axis, (name, links) in zip(axes, replays.items(), strict=True):
        above = min(1.0, below - PART)
        below = max(0.0, above - thin * len(links))
        rows[axis.replace("y", "yaxis")] = _rows(
            sorted(links), [below, above], name if len(links) > 1 else ""
        )
        bars += [bar for bar in _busy(links, scale, axis) if bar["x"]]
    levels = {
        bar["name"]: bar for bar in reversed(bars)
    }  # named once, and only where there are several
    for bar in bars:
        bar |= {
            "legendgroup": bar["name"],
            "showlegend": len(levels) > 1 and bar is levels[bar["name"]],
        }
    last = (
        max(at for links in replays.values() for history in links.values() for at, _ in history)
        * scale
    )
    return style.figure(
        bars,
        x=style.axis(f"time ({unit})<br>{where}", range=[0, 1.01 * last], anchor=axes[-1]),
        y=rows.pop("yaxis"),
        alt=f"{where}: how busy the links were.",
        height=FRAME + THIN * sum(map(len, replays.values())),
        barmode="overlay",
        bargap=0.25,
        **rows,
    )


def _rows_of(
    replay: str, links: Mapping[str, Sequence[tuple[float, float]]]
) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Make one row of the links of a kind if all are alike; a replay's only row has its name."""
    kinds: dict[str, dict[str, Sequence[tuple[float, float]]]] = defaultdict(dict)
    for name, history in links.items():
        kinds[re.sub(r"node \d+: | \d+", "", name)][name] = history
    rows: dict[str, Sequence[tuple[float, float]]] = {}
    for kind, each in kinds.items():
        first, *others = each.values()
        alike = others and all(history == first for history in others)
        rows |= {f"{len(each)} × {kind}": first} if alike else each
    return {f"{replay}:<br>{row}": rows[row] for row in rows} if len(rows) == 1 else rows


def _place(event: Event) -> tuple[int, bool]:
    return event.rank, event.kind == "communicate"


def _from_zero(events: Sequence[Event]) -> list[Event]:
    """Make the events begin at 0, as a replay does; `trace.spans` begins with the first event."""
    first = min(events, key=lambda event: event.start)
    return (
        [*events]
        if first.start == 0
        else [Event(first.rank, "idle", "waiting", (), 0, 0.0, first.start), *events]
    )


def _rows(
    names: Sequence[str], domain: Sequence[float], title: str = "", **more: Any
) -> dict[str, Any]:
    look = style.axis(
        title, domain=list(domain), range=[-0.6, len(names) - 0.4], tickfont={"size": 11}, **more
    )
    return {**look, "categoryorder": "array", "categoryarray": list(names)[::-1]}


def _busy(
    links: Mapping[str, Sequence[tuple[float, float]]], scale: float, axis: str = "y2"
) -> Iterator[dict[str, Any]]:
    """Draw a bar for every stretch in which a link carried something, one trace per level."""
    spans = [
        (name, at * scale, (until - at) * scale, 100 * share)
        for name, history in links.items()
        for (at, share), (until, _) in pairwise(history)
        if share
    ]
    for level, before in zip(LEVELS, [0, *LEVELS], strict=False):
        bars = [span for span in spans if before < span[-1] <= level + (level == max(LEVELS))]
        yield {
            "type": "bar",
            "orientation": "h",
            "yaxis": axis,
            "name": f"link ≤ {level} %",
            "y": [name for name, *_ in bars],
            "base": [at for _, at, *_ in bars],
            "x": [width for _, _, width, _ in bars],
            "marker": {**LEVELS[level], "line": {"width": 0}},
            "customdata": [share for *_, share in bars],
            "hovertemplate": "%{y}: %{customdata:.0f} % of its rate<extra></extra>",
        }
