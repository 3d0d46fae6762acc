"""Look up what a figure draws, and what it says in words."""

from collections import defaultdict


def data(figure):
    """Return the traces of `figure` by their names in the legend."""
    return {trace.name: trace for trace in figure.data if trace.name}


def lacks(figure):
    """What a figure does not say as it should: `alt` in words, `x` at its axis, nothing in a `title` of its own."""
    layout = figure.layout
    wrong = {"alt": not layout.meta["alt"], "x": not layout.xaxis.title.text, "title": bool(layout.title.text)}
    return [name for name, missed in wrong.items() if missed]


def alike(figure):
    """Names and patterns of bars of a plain figure that have one colour in one legend: no screen tells them apart."""
    names, shapes = defaultdict(set), defaultdict(set)
    for trace in (trace for trace in figure["data"] if trace.get("type") == "bar"):
        marker = trace.get("marker") or {}
        look = trace.get("legend", "legend"), str(marker.get("color"))
        shapes[look].add((marker.get("pattern") or {}).get("shape", ""))
        if trace.get("showlegend") is not False:
            names[look].add(trace.get("name"))
    return [sorted(found) for looks in (names, shapes) for found in map(set, looks.values()) if len(found) > 1]
