"""The look of every figure: one palette, one layout; nothing here computes.

The colours keep a contrast of about 3:1 on white and on the dark page (WCAG 2.1, 1.4.11) and stay
apart for readers with protanopia, deuteranopia and tritanopia (simulated after Machado, Oliveira
and Fernandes 2009, doi:10.1109/TVCG.2009.113). Meanings that share a colour have tints of it, which
differ in lightness. Traces also differ in name, symbol or pattern; pages show patterns of bars on
paper and in forced colours only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

BLUE, ORANGE, GREEN = "#2A6DE8", "#CE8117", "#3D7B70"
PURPLE, RED, OLIVE = "#964CB7", "#E51945", "#657020"
GREY, TEAL = "#8A8F98", "#2A8FA8"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, OLIVE, GREY)
TINTS = (0.0, 0.4, -0.3, 0.65, -0.5)  # shares of white; of black where negative


def tint(color: str, number: int) -> str:
    """Return tint `number` of "#rrggbb"; 0 is the colour itself, and after the last comes 0 again."""
    share = TINTS[number % len(TINTS)]
    channels = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round((1 - abs(share)) * each + max(share, 0) * 255) for each in channels]
    return "#" + "".join(f"{each:02X}" for each in mixed)


# One meaning, one colour, in every chapter.
COLOR: Mapping[str, str] = {
    "compute": BLUE,
    "communicate": ORANGE,
    "idle": GREY,
    "parameters": BLUE,
    "gradients": ORANGE,
    "optimizer": GREEN,
    "activations": PURPLE,
    "logits": OLIVE,
    "buffers": tint(GREY, 1),
    "overhead": TEAL,
    "predicted": PURPLE,
    "counted": GREEN,
    "measured": ORANGE,
    "ideal": GREY,
    "limit": RED,
    "tp": BLUE,
    "dp": ORANGE,
    "pp": GREEN,
}
RANKS = (*PALETTE[:-1], TEAL, tint(BLUE, 1))  # the looks of up to 8 ranks
SYMBOL: Mapping[str, str] = {"predicted": "circle-open", "counted": "square", "measured": "diamond"}

HEIGHT = 360  # pixels; a phone shows the figure and its sliders at once
FONT_SIZE = 13
POWER = 1.25  # how much larger than other labels plotly writes powers of ten
TEXT = "#757575"  # readable on white and on black; the built page puts the theme's own colour here
GRID = "rgba(128, 128, 128, 0.3)"


BRIGHT = 0.1791  # luminance at which black and white have the same contrast


def ink(fill: str) -> str:
    """Choose white or black for words on `fill`, "#rrggbb"."""
    return "black" if luminance(fill) > BRIGHT else "white"


def luminance(color: str) -> float:
    """Return the relative luminance of "#rrggbb", 0 to 1, as WCAG 2.1 defines it.

    Colours darker than #0b0b0b, for which it has another formula, come out a little wrong.
    """
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [((c + 0.055) / 1.055) ** 2.4 for c in channels]
    weights = (0.2126, 0.7152, 0.0722)
    return float(sum(c * weight for c, weight in zip(linear, weights, strict=True)))


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """Make an axis with room for its labels; options: plotly's own (type="log", …).

    Errors: ValueError for a logarithmic axis that leaves its ticks to plotly, which labels them
    "3 4 5 6 7 8 9 1000 2 3".
    """
    if options.get("type") == "log" and not {"tickvals", "dtick"} & {*options}:
        raise ValueError(f"the logarithmic axis {title!r} has no ticks; give tickvals or dtick")
    look: dict[str, Any] = {"gridcolor": GRID, "linecolor": GRID, "zerolinecolor": GRID}
    look["automargin"] = True
    if options.get("exponentformat") == "power":
        look["tickfont"] = {"size": FONT_SIZE / POWER}
    return {**look, "title": {"text": title, "standoff": 8, "font": {"size": FONT_SIZE}}, **options}


def layout(*, height: int = HEIGHT, **options: Any) -> dict[str, Any]:
    """Make the layout that every figure shares: no background, and the legend above the plot.

    Phones have no room for a legend beside it.
    """
    look = {
        "template": "none",
        "height": height,
        "margin": {
            "l": 8,
            "r": 16,
            "t": 36,
            "b": 8,
        },  # pixels; axes add what labels need, but for half the last
        "font": {"size": FONT_SIZE, "color": TEXT},
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "colorway": list(PALETTE),
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hovermode": "closest",
        "bargap": 0.3,
    }
    return {**look, **options}


def figure(
    traces: Iterable[Any],
    *,
    x: Mapping[str, Any] | str = "",
    y: Mapping[str, Any] | str = "",
    alt: str = "",
    height: int = HEIGHT,
    table: Sequence[Sequence[Any]] = (),
    **options: Any,
) -> go.Figure:
    """Make a plotly figure in the book's look.

    x, y: an axis title with its unit, or a whole `axis(...)`. alt: one sentence for readers who do
    not see the figure. table: the rows of its data table, where points do not say what is drawn;
    the first is the header. options: any entry of plotly's layout, for instance barmode="stack".
    plotly does not validate the entries here, which would take five times as long; the tests of
    figures do.
    """
    axes = {
        "xaxis": axis(x) if isinstance(x, str) else x,
        "yaxis": axis(y) if isinstance(y, str) else y,
    }
    meta = {key: value for key, value in (("alt", alt), ("table", table)) if value} or None
    look = layout(height=height, meta=meta, **axes, **options)
    return go.Figure(data=list(traces), layout=look, _validate=False)
