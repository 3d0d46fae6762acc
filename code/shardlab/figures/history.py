"""The figure of the history: the size of language models over the years."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from . import style

# kind of model -> colour, symbol, sides on which names of earlier and of later models stand
KINDS = {
    "dense": (style.BLUE, "circle", ("bottom right", "top left")),
    "mixture of experts": (style.ORANGE, "diamond", ("top left", "top left")),
}


def sizes(
    kinds: Mapping[str, Sequence[tuple[str, str, float]]], named: Sequence[str], *, alt: str = ""
) -> go.Figure:
    """Draw parameters, logarithmic, against the date of publication.

    kinds: "dense" or "mixture of experts" -> (name, date as year-month, parameters) of each model.
    named: those whose names are drawn, in two lines, which keeps them off other marks on a phone;
    the others show theirs under the pointer.
    """
    traces = []
    for kind, models in kinds.items():
        color, symbol, sides = KINDS[kind]
        traces.append(
            go.Scatter(
                x=[date for _, date, _ in models],
                y=[parameters for _, _, parameters in models],
                name=kind,
                mode="markers+text",
                text=[
                    "<br>".join(name.rsplit(" ", 1)) if name in named else ""
                    for name, _, _ in models
                ],
                textposition=[sides[2 * i >= len(models)] for i in range(len(models))],
                textfont={"size": 11},
                marker={"color": color, "symbol": symbol, "size": 9},
                customdata=[name for name, _, _ in models],
                hovertemplate="%{customdata}, %{x|%B %Y}: %{y:.3s} parameters<extra></extra>",
            )
        )
    return style.figure(
        traces,
        x=style.axis("date of publication", type="date"),
        y=style.axis("parameters", type="log", exponentformat="power", dtick=1),
        alt=alt or "The number of parameters of published language models, by date.",
        height=400,
    )
